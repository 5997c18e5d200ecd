"""Specs that must be taken, and the parts that they and others are made of."""

from __future__ import annotations

from typing import Any, NamedTuple


class Invalid(NamedTuple):
    """A spec, the field at fault, and a piece of the message."""

    spec: dict[str, Any]
    field: str
    says: str = ""


def engine(**values: Any) -> dict[str, Any]:
    return {"engine": values}


def tenants(*tenants: dict[str, Any]) -> dict[str, Any]:
    return {"router": {"auth": {"secretRef": {"name": "keys"}, "tenants": list(tenants)}}}


def template(**values: Any) -> dict[str, Any]:
    return {"template": values}


def router_template(**values: Any) -> dict[str, Any]:
    return {"router": {"template": values}}


def mounted(path: str) -> dict[str, Any]:
    return template(
        volumes=[{"name": "a", "emptyDir": {}}], volumeMounts=[{"name": "a", "mountPath": path}]
    )


def spread(most: int, otherwise: str = "ScheduleAnyway") -> dict[str, Any]:
    return {"maxSkew": most, "topologyKey": "zone", "whenUnsatisfiable": otherwise}


def sidecar_ports(*ports: dict[str, Any]) -> dict[str, Any]:
    return template(sidecars=[{"name": "log", "image": "a", "ports": list(ports)}])


def traced(endpoint: str) -> dict[str, Any]:
    return {"tracing": {"endpoint": endpoint}}


VALID: dict[str, dict[str, Any]] = {
    "an integer of 64 bits": engine(kvPoolTokens=2**63 - 1),
    "half a percent": {"tracing": {"endpoint": "http://h", "samplePercent": "0.5"}},
    "a queue for decode": {"autoscaling": {"target": {"decodeQueue": 4}}, "prefill": {}},
    "a promise for all but one of a thousand": {
        "slo": {"ttftMilliseconds": 500, "percentile": "99.9"},
    },
    "a canary in two steps": {"rollout": {"canary": {"steps": [5, 25], "onWorse": "Hold"}}},
    "a canary that a person judges": {
        "rollout": {"canary": {"judge": {"errors": False, "slo": False}}}
    },
    "a canary judged by errors alone": {
        "rollout": {"canary": {"minutes": 1440, "judge": {"slo": False, "marginPoints": 20}}}
    },
    "a canary of the default steps": {"rollout": {"strategy": "Surge", "canary": {}}},
    "aliases": {"model": {"uri": "file:///org/m", "aliases": ["org/m", "/m", "file:///org/m"]}},
    "any origin": {"router": {"cors": {"allowedOrigins": ["*", "http://localhost:3000"]}}},
    "quantities": {"resources": {"requests": {"cpu": 2, "memory": "4Gi", "a/b": 1}}},
    "null for what has a default": {"replicas": None},
    "null for a section": {"engine": None, "template": None},
    "null for a value": engine(dtype=None, schedulingPolicy=None),
    "null below a section": engine(kvTransfer={"backend": None}) | {"prefill": {}},
    "null in a map": template(nodeSelector={"a": None}),
    "a spread in two ways": template(
        topologySpreadConstraints=[spread(1), spread(2, "DoNotSchedule")]
    ),
    "a port of two protocols": sidecar_ports(
        {"containerPort": 53}, {"containerPort": 53, "protocol": "UDP"}
    ),
    "routers on nodes of their own": router_template(
        affinity={
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}
                    ]
                }
            }
        },
        tolerations=[],
        labels={"team": "a"},
        sidecars=[
            {
                "name": "proxy",
                "image": "a",
                "volumeMounts": [{"name": "keys", "mountPath": "/keys"}],
            }
        ],
        volumes=[{"name": "keys", "secret": {"secretName": "a"}}],
    ),
    "a mount whose name begins like the operator's": mounted("/etc/sluices"),
    "a collector's highest port": traced("http://h.a-b_c:65535/v1:2"),
    "a collector's address": traced("http://[2001:db8::1]:4318"),
    "a collector without a port": traced("https://h"),
    "two tolerations alike": template(tolerations=[{"key": "a"}, {"key": "a"}]),
}

VALID_NAMES = ("chat", "a", "a" * 40, "c-1")
