"""Specs that must be refused, and the field that the refusal must name."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.operator.api.valid_specs import (
    engine,
    mixed,
    mounted,
    sidecar_ports,
    spread,
    template,
    tenants,
    traced,
)


class Invalid(NamedTuple):
    """A spec, the field at fault, and a piece of the message."""

    spec: dict[str, Any]
    field: str
    says: str = ""


INVALID: dict[str, Invalid] = {
    "no model": Invalid({"model": None}, "spec.model"),
    "no uri": Invalid({"model": {}}, "spec.model.uri"),
    "empty uri": Invalid({"model": {"uri": ""}}, "spec.model.uri"),
    "unknown scheme": Invalid({"model": {"uri": "ftp://b/m"}}, "spec.model.uri", "hf://org/name"),
    "plain path": Invalid({"model": {"uri": "/models/m"}}, "spec.model.uri", "file:///path"),
    "long part of a path": Invalid(
        {"model": {"uri": "file:///" + 254 * "a"}}, "spec.model.uri", "253"
    ),
    "climbing path": Invalid({"model": {"uri": "pvc://c/../m"}}, "spec.model.uri", "'..'"),
    "an image without a repository": Invalid(
        {"model": {"uri": "oci://r"}}, "spec.model.uri", "oci://"
    ),
    "a digest that is none": Invalid({"model": {"uri": "oci://r/m@sha256:1"}}, "spec.model.uri"),
    "the repository as an alias": Invalid(
        {"model": {"uri": "oci://r/m:1", "aliases": ["m"]}}, "spec.model.aliases"
    ),
    "a long name of an image": Invalid(
        {"model": {"uri": "oci://r" + 253 * "/a" + ":123456"}}, "spec.model.uri", "512"
    ),
    "a revision that reads as an option": Invalid(
        {"model": {"uri": "hf://a/b", "revision": "--cache"}}, "spec.model.revision", "match"
    ),
    "a long name of a claim with adapters": Invalid(
        {
            "model": {
                "uri": "dummy://m",
                "adapters": [
                    {"name": "a", "uri": f"pvc://{254 * 'a'}/a"},
                ],
            }
        },
        "spec.model.adapters[0].uri",
        "253",
    ),
    "adapters of a hub without a cache": Invalid(
        {"model": {"uri": "dummy://m", "adapters": [{"name": "a", "uri": "hf://org/a@v1"}]}},
        "spec.model.cache",
        "hf:// adapters",
    ),
    "a revision of an adapter that reads as an option": Invalid(
        {
            "model": {
                "uri": "dummy://m",
                "cache": {"claim": "c"},
                "adapters": [{"name": "a", "uri": "hf://org/a@--cache"}],
            }
        },
        "spec.model.adapters[0].uri",
        "hf://org/name@revision",
    ),
    "a volume of the operator's": Invalid(
        template(volumes=[{"name": "sluice-adapters-0", "emptyDir": {}}]),
        "spec.pools.mixed.template.volumes[0].name",
        "sluice-adapters",
    ),
    "the volume with certificates of a hub": Invalid(
        template(volumes=[{"name": "sluice-hub-ca", "emptyDir": {}}]),
        "spec.pools.mixed.template.volumes[0].name",
        "sluice-hub-ca",
    ),
    "revision of a file": Invalid(
        {"model": {"uri": "file:///m", "revision": "main"}},
        "spec.model.revision",
        "a hub or bucket",
    ),
    "token of a file": Invalid(
        {"model": {"uri": "file:///m", "tokenSecretRef": {"name": "a", "key": "b"}}},
        "spec.model.tokenSecretRef",
        "a hub or bucket",
    ),
    "GPUs of a split beside pools": Invalid(
        {
            "mode": "Disaggregated",
            "autoscaling": {"gpuBudget": 4, "accelerator": {"count": 1}},
            "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}},
        },
        "spec.autoscaling",
        "without pools",
    ),
    "GPUs of a split without a budget": Invalid(
        {"mode": "Disaggregated", "autoscaling": {"accelerator": {"count": 1}}},
        "spec.autoscaling",
        "with gpuBudget",
    ),
    "an alias twice": Invalid(
        {"model": {"uri": "file:///m", "aliases": ["a", "a"]}}, "spec.model.aliases", "each once"
    ),
    "the name as an alias": Invalid(
        {"model": {"uri": "file:///m", "name": "a", "aliases": ["a"]}}, "spec.model.aliases"
    ),
    "the name that the URI gives as an alias": Invalid(
        {"model": {"uri": "file:///path/m/", "aliases": ["m"]}}, "spec.model.aliases"
    ),
    "an origin with a path": Invalid(
        {"router": {"cors": {"allowedOrigins": ["https://a.example/b"]}}},
        "spec.router.cors.allowedOrigins[0]",
    ),
    "a route from nowhere": Invalid({"router": {"route": {}}}, "spec.router.route.parentRefs"),
    "a route without a Gateway": Invalid(
        {"router": {"route": {"parentRefs": []}}}, "spec.router.route.parentRefs"
    ),
    "a route whose path climbs": Invalid(
        {"router": {"route": {"parentRefs": [{"name": "a"}], "path": "/a/../b"}}},
        "spec.router.route.path",
    ),
    "a route with a port in its host": Invalid(
        {"router": {"route": {"parentRefs": [{"name": "a"}], "hostnames": ["a.example:80"]}}},
        "spec.router.route.hostnames[0]",
    ),
    "unknown mode": Invalid({"mode": "Both"}, "spec.mode"),
    "pools of another mode": Invalid(
        {"mode": "Mixed", "pools": {"prefill": {}, "decode": {}}},
        "spec.pools",
        "only the pool mixed",
    ),
    "a hand-over in Mixed": Invalid(
        engine(kvTransfer={}), "spec.engine", "no kvTransfer in mode Mixed"
    ),
    "a hand-over of the mixed pool": Invalid(
        mixed(engine={"kvTransfer": {}}), "spec.pools", "no kvTransfer in mode Mixed"
    ),
    "a queue for decode in Mixed": Invalid(
        mixed(autoscaling={"minReplicas": 1, "maxReplicas": 2})
        | {"autoscaling": {"target": {"decodeQueue": 4}}},
        "spec.autoscaling",
        "target.decodeQueue only in mode Disaggregated",
    ),
    "a promise for all requests": Invalid(
        {"slo": {"ttftMilliseconds": 500, "percentile": 99.95}}, "spec.slo.percentile"
    ),
    "mixed pool in Disaggregated": Invalid(
        {"mode": "Disaggregated", "pools": {"mixed": {}}}, "spec.pools", "prefill and decode"
    ),
    "half of a pair": Invalid(
        {"mode": "Disaggregated", "pools": {"prefill": {}}}, "spec.pools", "or neither"
    ),
    "min above max": Invalid(
        mixed(autoscaling={"minReplicas": 3, "maxReplicas": 2}),
        "spec.pools.mixed.autoscaling.minReplicas",
        "maxReplicas",
    ),
    "no max": Invalid(
        mixed(autoscaling={"minReplicas": 3}), "spec.pools.mixed.autoscaling.maxReplicas"
    ),
    "replicas beside autoscaling": Invalid(
        mixed(replicas=1, autoscaling={"minReplicas": 1, "maxReplicas": 2}),
        "spec.pools.mixed.replicas",
        "replicas or autoscaling, not both",
    ),
    "a resource without a domain": Invalid(
        mixed(accelerator={"resourceName": "gpu"}), "spec.pools.mixed.accelerator.resourceName"
    ),
    "a resource of Kubernetes itself": Invalid(
        mixed(accelerator={"resourceName": "node.kubernetes.io/gpu"}),
        "spec.pools.mixed.accelerator.resourceName",
        "extended resource",
    ),
    "a label of no product": Invalid(
        mixed(accelerator={"productLabel": "cloud.google.com/gke-accelerator"}),
        "spec.pools.mixed.accelerator.productLabel",
        "only beside product",
    ),
    "a label of the operator's": Invalid(
        template(labels={"serving.sluice.dev/role": "mixed"}),
        "spec.pools.mixed.template.labels",
        "which are the operator's",
    ),
    "fewest parts that are not insisted on": Invalid(
        template(
            topologySpreadConstraints=[
                {
                    "maxSkew": 1,
                    "topologyKey": "zone",
                    "whenUnsatisfiable": "ScheduleAnyway",
                    "minDomains": 2,
                }
            ]
        ),
        "spec.pools.mixed.template.topologySpreadConstraints[0].minDomains",
        "DoNotSchedule",
    ),
    "a setting of one pool that is out of range": Invalid(
        mixed(engine={"chunkSize": 8}), "spec.pools.mixed.engine.chunkSize", "pageSize"
    ),
    "negative replicas": Invalid(mixed(replicas=-1), "spec.pools.mixed.replicas"),
    "text as replicas": Invalid(mixed(replicas="two"), "spec.pools.mixed.replicas"),
    "no GPU": Invalid(mixed(accelerator={"count": 0}), "spec.pools.mixed.accelerator.count"),
    "no such quantity, with a limit": Invalid(
        mixed(resources={"requests": {"cpu": "lots"}, "limits": {"cpu": 1}}),
        "spec.pools.mixed.resources.requests.cpu",
    ),
    "no such quantity": Invalid(
        mixed(resources={"requests": {"cpu": "lots"}}), "spec.pools.mixed.resources.requests.cpu"
    ),
    "GPUs as a resource": Invalid(
        mixed(resources={"limits": {"nvidia.com/gpu": 1}}),
        "spec.pools.mixed.resources.limits",
        "accelerator.count",
    ),
    "request above limit": Invalid(
        mixed(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "2000M"}}),
        "spec.pools.mixed.resources.requests",
        "at most the limits",
    ),
    "request above limit in other units": Invalid(
        mixed(resources={"requests": {"cpu": 2}, "limits": {"cpu": "1999m"}}),
        "spec.pools.mixed.resources.requests",
        "at most the limits",
    ),
    "selector with a bad key": Invalid(
        template(nodeSelector={"a b": "c"}),
        "spec.pools.mixed.template.nodeSelector",
        "example.com/name",
    ),
    "selector with a long key": Invalid(
        template(nodeSelector={f"example.com/{'n' * 64}": "c"}),
        "spec.pools.mixed.template.nodeSelector",
        "example.com/name",
    ),
    "label with a long key": Invalid(
        template(labels={"n" * 64: "c"}),
        "spec.pools.mixed.template.labels",
        "example.com/name",
    ),
    "topology with a long key": Invalid(
        template(
            topologySpreadConstraints=[
                {"maxSkew": 1, "topologyKey": "n" * 64, "whenUnsatisfiable": "ScheduleAnyway"}
            ]
        ),
        "spec.pools.mixed.template.topologySpreadConstraints[0].topologyKey",
    ),
    "annotation with a bad key": Invalid(
        template(annotations={"/a": "c"}),
        "spec.pools.mixed.template.annotations",
        "example.com/name",
    ),
    "chunk below page": Invalid(engine(chunkSize=8), "spec.engine.chunkSize", "pageSize"),
    "chunk below given page": Invalid(
        engine(chunkSize=64, pageSize=128), "spec.engine.chunkSize", "pageSize"
    ),
    "chunk below off": Invalid(engine(chunkSize=-2), "spec.engine.chunkSize"),
    "a step of nothing": Invalid(engine(maxPrefillTokens=0), "spec.engine.maxPrefillTokens"),
    "chunk of nothing": Invalid(engine(chunkSize=0), "spec.engine.chunkSize"),
    "share above chunk": Invalid(
        engine(chunkSize=64, minPrefillTokens=65), "spec.engine.minPrefillTokens", "chunkSize"
    ),
    "share above the most of a step": Invalid(
        engine(minPrefillTokens=65, maxPrefillTokens=64),
        "spec.engine.minPrefillTokens",
        "maxPrefillTokens",
    ),
    "a step below page": Invalid(
        engine(maxPrefillTokens=8), "spec.engine.maxPrefillTokens", "pageSize"
    ),
    "all memory": Invalid(engine(memoryFraction=1), "spec.engine.memoryFraction"),
    "unknown dtype": Invalid(engine(dtype="int3"), "spec.engine.dtype"),
    "unknown policy": Invalid(engine(schedulingPolicy="best"), "spec.engine.schedulingPolicy"),
    "image with a blank": Invalid(engine(image="a b"), "spec.engine.image"),
    "too short a start": Invalid(engine(startupSeconds=1), "spec.engine.startupSeconds"),
    "no routers": Invalid({"router": {"replicas": 0}}, "spec.router.replicas"),
    "auth without a secret": Invalid({"router": {"auth": {}}}, "spec.router.auth.secretRef"),
    "a default above the maximum": Invalid(
        tenants({"name": "a", "defaultPriority": 2, "maxPriority": 1}),
        "spec.router.auth.tenants[0].defaultPriority",
        "defaultPriority at most maxPriority",
    ),
    "a tenant twice": Invalid(tenants({"name": "a"}, {"name": "a"}), "spec.router.auth.tenants[1]"),
    "unknown strategy": Invalid({"rollout": {"strategy": "Big"}}, "spec.rollout.strategy"),
    "unknown provider": Invalid({"autoscaling": {"provider": "Me"}}, "spec.autoscaling.provider"),
    "a collector's port above all ports": Invalid(
        traced("http://h:99999"), "spec.tracing.endpoint", "port of 1 to 65535"
    ),
    "a collector's port just above": Invalid(
        traced("https://h:65536/a"), "spec.tracing.endpoint", "port of 1 to 65535"
    ),
    "a collector's port of 0": Invalid(
        traced("http://h:0"), "spec.tracing.endpoint", "port of 1 to 65535"
    ),
    "a collector's port by name": Invalid(
        traced("http://h:otlp/"), "spec.tracing.endpoint", "port of 1 to 65535"
    ),
    "a collector's address that is not closed": Invalid(
        traced("http://[::1/a"), "spec.tracing.endpoint", "port of 1 to 65535"
    ),
    "no time at all": Invalid({"slo": {"ttftMilliseconds": 0}}, "spec.slo.ttftMilliseconds"),
    "taken variable": Invalid(
        template(env=[{"name": "POD_IP", "value": "x"}]),
        "spec.pools.mixed.template.env[0].name",
        "which the operator sets",
    ),
    "two values": Invalid(
        template(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]),
        "spec.pools.mixed.template.env[0]",
        "not both",
    ),
    "taken volume": Invalid(
        template(volumes=[{"name": "shm", "emptyDir": {}}]),
        "spec.pools.mixed.template.volumes[0].name",
        "the operator's",
    ),
    "host path": Invalid(
        template(volumes=[{"name": "a"}]), "spec.pools.mixed.template.volumes[0]", "exactly one"
    ),
    "taken mount": Invalid(
        template(
            volumes=[{"name": "a", "emptyDir": {}}],
            volumeMounts=[{"name": "a", "mountPath": "/etc/sluice"}],
        ),
        "spec.pools.mixed.template.volumeMounts[0].mountPath",
        "the operator's",
    ),
    "the variable with the revision": Invalid(
        template(env=[{"name": "POOL_REVISION", "value": "x"}]),
        "spec.pools.mixed.template.env[0].name",
        "which the operator sets",
    ),
    "the mount of the hand-over's key": Invalid(
        mounted("/etc/sluice/handover"),
        "spec.pools.mixed.template.volumeMounts[0].mountPath",
        "what is below /etc/sluice",
    ),
    "a mount below the configuration": Invalid(
        mounted("/etc/sluice/own/deep"),
        "spec.pools.mixed.template.volumeMounts[0].mountPath",
        "what is below /etc/sluice",
    ),
    "a spread twice": Invalid(
        template(topologySpreadConstraints=[spread(1), spread(2)]),
        "spec.pools.mixed.template.topologySpreadConstraints",
        "each pair of topologyKey and whenUnsatisfiable once",
    ),
    "a port of a sidecar twice": Invalid(
        sidecar_ports({"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}),
        "spec.pools.mixed.template.sidecars[0].ports",
        "each pair of containerPort and protocol once",
    ),
    "a port of an init container twice": Invalid(
        template(
            initContainers=[
                {"name": "a", "image": "a", "ports": [{"containerPort": 80}, {"containerPort": 80}]}
            ]
        ),
        "spec.pools.mixed.template.initContainers[0].ports",
        "each pair of containerPort and protocol once",
    ),
    "mount of nothing": Invalid(
        template(volumeMounts=[{"name": "a", "mountPath": "/a"}]),
        "spec.pools.mixed.template.volumeMounts",
        "template.volumes names",
    ),
    "sidecar's mount of nothing": Invalid(
        template(
            sidecars=[
                {
                    "name": "log",
                    "image": "a",
                    "volumeMounts": [{"name": "a", "mountPath": "/a"}],
                }
            ]
        ),
        "spec.pools.mixed.template.sidecars",
        "template.volumes names",
    ),
    "sidecar named engine": Invalid(
        template(sidecars=[{"name": "engine", "image": "a"}]),
        "spec.pools.mixed.template.sidecars[0].name",
        "operator's container",
    ),
    "no such effect": Invalid(
        template(tolerations=[{"effect": "Never"}]),
        "spec.pools.mixed.template.tolerations[0].effect",
    ),
    "an integer as text": Invalid(mixed(replicas="2"), "spec.pools.mixed.replicas"),
    "an integer as a boolean": Invalid(mixed(replicas=True), "spec.pools.mixed.replicas"),
    "an integer as a fraction": Invalid(mixed(replicas=2.5), "spec.pools.mixed.replicas"),
    "an integer of 65 bits": Invalid(engine(kvPoolTokens=2**64), "spec.engine.kvPoolTokens"),
    "an integer of the contract's as text": Invalid(
        engine(kvTransfer={"bootstrapPort": "5"}), "spec.engine.kvTransfer.bootstrapPort"
    ),
    "a number as text": Invalid(engine(memoryFraction="0.5"), "spec.engine.memoryFraction"),
    "a number as a boolean": Invalid(engine(memoryFraction=True), "spec.engine.memoryFraction"),
    "a boolean as text": Invalid({"paused": "true"}, "spec.paused"),
    "a boolean as a number": Invalid({"paused": 1}, "spec.paused"),
    "a text as a number": Invalid({"model": {"uri": "dummy://a", "name": 5}}, "spec.model.name"),
    "a text as a boolean": Invalid(engine(image=False), "spec.engine.image"),
    "a choice as a boolean": Invalid({"mode": True}, "spec.mode"),
    "a label as a number": Invalid(
        template(nodeSelector={"a": 1}), "spec.pools.mixed.template.nodeSelector.a"
    ),
    "a mapping as a list": Invalid({"engine": []}, "spec.engine"),
    "a mapping as text": Invalid({"engine": "fast"}, "spec.engine"),
    "a list as a mapping": Invalid(template(env={}), "spec.pools.mixed.template.env"),
    "null in a list": Invalid(template(env=[None]), "spec.pools.mixed.template.env[0]"),
    "null that is required": Invalid({"model": {"uri": None}}, "spec.model.uri"),
    "a quantity as a fraction": Invalid(
        mixed(resources={"requests": {"cpu": 0.5}}), "spec.pools.mixed.resources.requests.cpu"
    ),
    "a quantity as a boolean": Invalid(
        mixed(resources={"requests": {"cpu": True}}), "spec.pools.mixed.resources.requests.cpu"
    ),
    "a quantity below nothing": Invalid(
        mixed(resources={"requests": {"cpu": -1}}), "spec.pools.mixed.resources.requests.cpu"
    ),
    "a quantity with an exponent": Invalid(
        mixed(resources={"requests": {"cpu": "1e3"}}), "spec.pools.mixed.resources.requests.cpu"
    ),
    "a variable twice": Invalid(
        template(env=[{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]),
        "spec.pools.mixed.template.env[1]",
        '{"name":"A"}',
    ),
    "two volumes at one path": Invalid(
        template(
            volumes=[{"name": "a", "emptyDir": {}}],
            volumeMounts=[{"name": "a", "mountPath": "/a"}, {"name": "a", "mountPath": "/a"}],
        ),
        "spec.pools.mixed.template.volumeMounts[1]",
        '{"mountPath":"/a"}',
    ),
}

SEVERAL: dict[str, tuple[dict[str, Any], set[str]]] = {
    "values of one type": (
        {"mode": "Both", "engine": {"dtype": "int3", "pageSize": "16"}},
        {"spec.mode", "spec.engine.dtype", "spec.engine.pageSize"},
    ),
    "rules of one type": (
        engine(chunkSize=10, minPrefillTokens=12, maxPrefillTokens=8),
        {f"spec.engine.{key}" for key in ("chunkSize", "minPrefillTokens", "maxPrefillTokens")},
    ),
    "rules of several types": (
        engine(chunkSize=10) | {"pools": {"prefill": {}}},
        {"spec.engine.chunkSize", "spec.pools"},
    ),
    "a value, and a rule that waits for it": (
        engine(chunkSize=10, dtype="int3"),
        {"spec.engine.dtype"},
    ),
}
"""Specs with several mistakes, and all fields that the one refusal must name."""

INVALID_NAMES = ("Chat", "1chat", "chat.a", "a" * 41, "chat-")
