"""Services and NetworkPolicies: who may connect to whom, and under which name.

A pod selected by a policy for both directions is denied everything else, so each component has one
policy with all its flows. With two pools, each pool has a second policy for the flows between them.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from sluice_contract.cluster import labels, ports
from sluice_contract.cluster.labels import ROUTER_ROLE, CanaryShare, Role

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import NETWORK_POLICY, SERVICE, Manifest
from sluice_operator.manifests.metadata import ENGINE, ROUTER, Owner, selector_labels

MONITORING_LABEL: Final = f"{labels.GROUP}/monitoring"
"""Label of namespaces that may read metrics and load reports, with the value `true`."""

NAMESPACE_LABEL: Final = "kubernetes.io/metadata.name"
OPERATOR_NAMESPACE: Final = "sluice-system"
"""Default of the operator's namespace."""
OPERATOR_LABELS: Final = {labels.NAME: "sluice-operator", labels.COMPONENT: "operator"}
"""Labels of the operator's own pods, see manifests/operator."""


def front_service(owner: Owner) -> Manifest:
    """The Service for clients; it selects the routers."""
    port = {"name": "http", "port": ports.SERVICE_HTTP, "targetPort": "http", "protocol": "TCP"}
    return owner.child(SERVICE, owner.service, ROUTER, ROUTER_ROLE) | {
        "spec": {
            "type": "ClusterIP",
            "selector": selector_labels(owner.service, ROUTER_ROLE),
            "ports": [port],
        }
    }


def pool_service(owner: Owner, role: Role, canary: CanaryShare | None = None) -> Manifest:
    """The headless Service whose EndpointSlices list the ready engines for the routers, with the
    share of a `canary`. It publishes ready addresses only: that is the default, and is left out
    because the API server does not store it."""
    port = {"name": "http", "port": ports.ENGINE_HTTP, "targetPort": "http", "protocol": "TCP"}
    head = owner.child(SERVICE, f"{owner.service}-{role}", ENGINE, role)
    if canary is not None:
        head["metadata"]["labels"] |= {labels.CANARY: canary.label}
    return head | {
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": selector_labels(owner.service, role),
            "ports": [port],
        }
    }


def collector_port(spec: InferenceServiceSpec) -> int | None:
    """Port of the collector that takes spans; None where there is none."""
    if spec.tracing is None:
        return None
    url = urlsplit(spec.tracing.endpoint)
    return url.port or (443 if url.scheme == "https" else 80)


def router_policy(
    owner: Owner,
    api_server_ports: tuple[int, ...],
    operator_namespace: str,
    collector: int | None = None,
) -> Manifest:
    """Flows of the routers. In: requests from anyone; metrics and load for monitoring and the
    operator. Out: engines, DNS, the API server, and spans to `collector`, a port in monitoring. A
    policy cannot name the API server, only the ports that it listens on behind its Service."""
    ingress = [
        {"ports": [policy_port(ports.ROUTER_HTTP)]},
        {
            "from": [_monitoring(), operator_pods(operator_namespace)],
            "ports": [policy_port(ports.ROUTER_METRICS)],
        },
    ]
    egress = [
        {"to": [_pods(owner, ENGINE)], "ports": [policy_port(ports.ENGINE_HTTP)]},
        DNS,
        {"ports": [policy_port(port) for port in api_server_ports]},
        *_to_collector(collector),
    ]
    return _policy(owner, ROUTER, ingress, egress)


def engine_policy(owner: Owner, operator_namespace: str, collector: int | None = None) -> Manifest:
    """Flows of the engines. In: requests from routers; metrics and load for monitoring and the
    operator, which reads the accelerator there. Out: only the `collector` of spans, if there is
    one."""
    ingress = [
        {"from": [_pods(owner, ROUTER)], "ports": [policy_port(ports.ENGINE_HTTP)]},
        {
            "from": [_monitoring(), operator_pods(operator_namespace)],
            "ports": [policy_port(ports.ENGINE_METRICS)],
        },
    ]
    egress = [DNS, *_to_collector(collector)] if collector else []
    return _policy(owner, ENGINE, ingress, egress)


def handover_policies(
    owner: Owner, bootstrap_ports: tuple[int, ...], *, engines_move: bool = False
) -> tuple[Manifest, ...]:
    """Policies for the hand-over of one service. Decode engines may ask prefill engines for the KV
    cache, and the ports that carry it are open between the two pools, in both directions.
    `engines_move`: open between all engines, because a moved engine first ends its work in its
    former role."""
    asks = [policy_port(port) for port in bootstrap_ports]
    carries = policy_port(ports.KV_TRANSFER_MIN) | {"endPort": ports.KV_TRANSFER_MAX}
    of_prefill, of_decode = (_pool_pods(owner, role) for role in (Role.PREFILL, Role.DECODE))
    if engines_move:
        peers, opened = [of_prefill, of_decode], [*asks, carries]
        rules = {"from": peers, "ports": opened}, {"to": peers, "ports": opened}
        return tuple(_pool_policy(owner, role, *rules) for role in (Role.PREFILL, Role.DECODE))
    return (
        _pool_policy(
            owner,
            Role.PREFILL,
            ingress={"from": [of_decode], "ports": [*asks, carries]},
            egress={"to": [of_decode], "ports": [carries]},
        ),
        _pool_policy(
            owner,
            Role.DECODE,
            ingress={"from": [of_prefill], "ports": [carries]},
            egress={"to": [of_prefill], "ports": [*asks, carries]},
        ),
    )


def _pool_policy(owner: Owner, role: Role, ingress: Manifest, egress: Manifest) -> Manifest:
    spec = {
        **_pool_pods(owner, role),
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [ingress],
        "egress": [egress],
    }
    return owner.child(NETWORK_POLICY, f"{owner.service}-{role}", ENGINE, role) | {"spec": spec}


def _pool_pods(owner: Owner, role: Role) -> Manifest:
    return {"podSelector": {"matchLabels": selector_labels(owner.service, role)}}


def _policy(
    owner: Owner, component: str, ingress: list[Manifest], egress: list[Manifest]
) -> Manifest:
    spec = {
        **_pods(owner, component),
        "policyTypes": ["Ingress", "Egress"],
        # The API server does not store an empty list of rules; absent, it also allows nothing.
        **({"ingress": ingress} if ingress else {}),
        **({"egress": egress} if egress else {}),
    }
    return owner.child(NETWORK_POLICY, f"{owner.service}-{component}", component) | {"spec": spec}


def _to_collector(port: int | None) -> list[Manifest]:
    return [{"to": [_monitoring()], "ports": [policy_port(port)]}] if port else []


def _monitoring() -> Manifest:
    return {"namespaceSelector": {"matchLabels": {MONITORING_LABEL: "true"}}}


def operator_pods(namespace: str) -> Manifest:
    """The operator's pods; every namespace carries its name as a label."""
    return {
        "namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: namespace}},
        "podSelector": {"matchLabels": OPERATOR_LABELS},
    }


def _pods(owner: Owner, component: str) -> Manifest:
    selector = {labels.SERVICE: owner.service, labels.COMPONENT: component}
    return {"podSelector": {"matchLabels": selector}}


def policy_port(number: int, protocol: str = "TCP") -> Manifest:
    """A port in a policy."""
    return {"port": number, "protocol": protocol}


DNS_PORTS: Final = (53, 5353)
"""Ports of DNS. A policy sees the port of the pod that answers: 53 or, on OpenShift, 5353 behind
the Service's 53."""
DNS: Final[Manifest] = {
    "ports": [policy_port(port, protocol) for port in DNS_PORTS for protocol in ("UDP", "TCP")]
}
"""Flow to DNS servers anywhere."""


def share_of(service: Manifest) -> CanaryShare | None:
    """Share of a canary that a pool's Service has in its label, which routers read."""
    return labels.canary_share((service["metadata"].get("labels") or {}).get(labels.CANARY, ""))
