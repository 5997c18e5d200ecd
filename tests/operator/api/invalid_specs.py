"""Specs that must be refused, and the field that the refusal must name."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.operator.api.valid_specs import (
    engine,
    mounted,
    router_template,
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


SPLIT: dict[str, Any] = {
    "accelerator": {"count": 1},
    "autoscaling": {"gpuBudget": 4},
    "prefill": {},
}
"""Two pools whose numbers the operator chooses."""

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
        "spec.template.volumes[0].name",
        "sluice-adapters",
    ),
    "the volume with certificates of a hub": Invalid(
        template(volumes=[{"name": "sluice-hub-ca", "emptyDir": {}}]),
        "spec.template.volumes[0].name",
        "sluice-hub-ca",
    ),
    "revision of a file": Invalid(
        {"model": {"uri": "file:///m", "revision": "main"}},
        "spec.model.revision",
        "a hub or bucket",
    ),
    "resources of a download that there is none of": Invalid(
        {"model": {"uri": "pvc://c/m", "resources": {"limits": {"cpu": 1}}}},
        "spec.model.resources",
        "hub, bucket or image",
    ),
    "requests of a download above its limits": Invalid(
        {
            "model": {
                "uri": "hf://a/b",
                "resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1024Mi"}},
            }
        },
        "spec.model.resources.requests",
        "at most the limits",
    ),
    "token of a file": Invalid(
        {"model": {"uri": "file:///m", "tokenSecretRef": {"name": "a", "key": "b"}}},
        "spec.model.tokenSecretRef",
        "a hub or bucket",
    ),
    "an alias twice": Invalid(
        {"model": {"uri": "file:///m", "aliases": ["a", "a"]}}, "spec.model.aliases[1]", '"a"'
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
    "a hand-over without two pools": Invalid(
        engine(kvTransfer={}), "spec.engine.kvTransfer", "only beside spec.prefill"
    ),
    "a hand-over of one of two pools": Invalid(
        {"prefill": engine(kvTransfer={})}, "spec.prefill.engine.kvTransfer", "for both pools"
    ),
    "a number beside a budget that the operator splits": Invalid(
        SPLIT | {"replicas": 2}, "spec.replicas", "only with prefill.replicas"
    ),
    "one pool's number beside a budget that the operator splits": Invalid(
        SPLIT | {"prefill": {"replicas": 2}}, "spec.prefill", "only with spec.replicas"
    ),
    "a budget of no GPUs' kind": Invalid(
        {"replicas": 2, "autoscaling": {"gpuBudget": 4}},
        "spec.autoscaling.gpuBudget",
        "only beside spec.accelerator",
    ),
    "a queue for decode in one pool": Invalid(
        {"autoscaling": {"minReplicas": 1, "maxReplicas": 2, "target": {"decodeQueue": 4}}},
        "spec.autoscaling.target.decodeQueue",
        "only beside spec.prefill",
    ),
    "a promise for all requests": Invalid(
        {"slo": {"ttftMilliseconds": 500, "percentile": "99.95"}},
        "spec.slo.percentile",
        "50 to 99.9: a whole number",
    ),
    "a promise as a fraction": Invalid(
        {"slo": {"ttftMilliseconds": 500, "percentile": 99.5}}, "spec.slo.percentile"
    ),
    "a promise in words": Invalid(
        {"slo": {"ttftMilliseconds": 500, "percentile": "most"}}, "spec.slo.percentile"
    ),
    "more than all requests traced": Invalid(
        {"tracing": {"endpoint": "http://h", "samplePercent": 101}},
        "spec.tracing.samplePercent",
        "0 to 100",
    ),
    "min above max": Invalid(
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
        "spec.autoscaling.minReplicas",
        "maxReplicas",
    ),
    "no max": Invalid(
        {"autoscaling": {"minReplicas": 3}}, "spec.autoscaling", "maxReplicas, or neither"
    ),
    "no max of prefill engines": Invalid(
        {"prefill": {"autoscaling": {"minReplicas": 3}}}, "spec.prefill.autoscaling.maxReplicas"
    ),
    "replicas beside autoscaling": Invalid(
        {"replicas": 1, "autoscaling": {"minReplicas": 1, "maxReplicas": 2}},
        "spec.replicas",
        "replicas, or minReplicas and maxReplicas of autoscaling, not both",
    ),
    "replicas beside autoscaling of prefill engines": Invalid(
        {"prefill": {"replicas": 1, "autoscaling": {"minReplicas": 1, "maxReplicas": 2}}},
        "spec.prefill.replicas",
        "not both",
    ),
    "a resource without a domain": Invalid(
        {"accelerator": {"resourceName": "gpu"}}, "spec.accelerator.resourceName"
    ),
    "a resource of Kubernetes itself": Invalid(
        {"accelerator": {"resourceName": "node.kubernetes.io/gpu"}},
        "spec.accelerator.resourceName",
        "extended resource",
    ),
    "a label of no product": Invalid(
        {"accelerator": {"productLabel": "cloud.google.com/gke-accelerator"}},
        "spec.accelerator.productLabel",
        "only beside product",
    ),
    "a label of the operator's": Invalid(
        template(labels={"serving.sluice.dev/role": "mixed"}),
        "spec.template.labels",
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
        "spec.template.topologySpreadConstraints[0].minDomains",
        "DoNotSchedule",
    ),
    "a setting of one pool that is out of range": Invalid(
        {"engine": {"chunkSize": 8}}, "spec.engine.chunkSize", "pageSize"
    ),
    "negative replicas": Invalid({"replicas": -1}, "spec.replicas"),
    "text as replicas": Invalid({"replicas": "two"}, "spec.replicas"),
    "no GPU": Invalid({"accelerator": {"count": 0}}, "spec.accelerator.count"),
    "no such quantity, with a limit": Invalid(
        {"resources": {"requests": {"cpu": "lots"}, "limits": {"cpu": 1}}},
        "spec.resources.requests.cpu",
    ),
    "no such quantity": Invalid(
        {"resources": {"requests": {"cpu": "lots"}}}, "spec.resources.requests.cpu"
    ),
    "GPUs as a resource": Invalid(
        {"resources": {"limits": {"nvidia.com/gpu": 1}}},
        "spec.resources.limits",
        "accelerator.count",
    ),
    "request above limit": Invalid(
        {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "2000M"}}},
        "spec.resources.requests",
        "at most the limits",
    ),
    "request above limit in other units": Invalid(
        {"resources": {"requests": {"cpu": 2}, "limits": {"cpu": "1999m"}}},
        "spec.resources.requests",
        "at most the limits",
    ),
    "selector with a bad key": Invalid(
        template(nodeSelector={"a b": "c"}),
        "spec.template.nodeSelector",
        "example.com/name",
    ),
    "selector with a long key": Invalid(
        template(nodeSelector={f"example.com/{'n' * 64}": "c"}),
        "spec.template.nodeSelector",
        "example.com/name",
    ),
    "label with a long key": Invalid(
        template(labels={"n" * 64: "c"}),
        "spec.template.labels",
        "example.com/name",
    ),
    "topology with a long key": Invalid(
        template(
            topologySpreadConstraints=[
                {"maxSkew": 1, "topologyKey": "n" * 64, "whenUnsatisfiable": "ScheduleAnyway"}
            ]
        ),
        "spec.template.topologySpreadConstraints[0].topologyKey",
    ),
    "annotation with a bad key": Invalid(
        template(annotations={"/a": "c"}),
        "spec.template.annotations",
        "example.com/name",
    ),
    "chunk below page": Invalid(engine(chunkSize=8), "spec.engine.chunkSize", "pageSize"),
    "chunk below given page": Invalid(
        engine(chunkSize=64, pageSize=128), "spec.engine.chunkSize", "pageSize"
    ),
    "prefill's own chunk below its own page": Invalid(
        {"prefill": engine(chunkSize=64, pageSize=128)}, "spec.prefill.engine.chunkSize", "pageSize"
    ),
    "prefill's own least above its own most": Invalid(
        {"prefill": engine(minPrefillTokens=65, maxPrefillTokens=64)},
        "spec.prefill.engine.minPrefillTokens",
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
    "all memory": Invalid(engine(memoryPercent=100), "spec.engine.memoryPercent"),
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
        "spec.template.env[0].name",
        "which the operator sets",
    ),
    "two values": Invalid(
        template(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "a"}}}]),
        "spec.template.env[0]",
        "not both",
    ),
    "taken volume": Invalid(
        template(volumes=[{"name": "shm", "emptyDir": {}}]),
        "spec.template.volumes[0].name",
        "the operator's",
    ),
    "host path": Invalid(
        template(volumes=[{"name": "a"}]), "spec.template.volumes[0]", "exactly one"
    ),
    "taken mount": Invalid(
        template(
            volumes=[{"name": "a", "emptyDir": {}}],
            volumeMounts=[{"name": "a", "mountPath": "/etc/sluice"}],
        ),
        "spec.template.volumeMounts[0].mountPath",
        "the operator's",
    ),
    "the variable with the revision": Invalid(
        template(env=[{"name": "POOL_REVISION", "value": "x"}]),
        "spec.template.env[0].name",
        "which the operator sets",
    ),
    "the mount of the hand-over's key": Invalid(
        mounted("/etc/sluice/handover"),
        "spec.template.volumeMounts[0].mountPath",
        "what is below /etc/sluice",
    ),
    "a mount below the configuration": Invalid(
        mounted("/etc/sluice/own/deep"),
        "spec.template.volumeMounts[0].mountPath",
        "what is below /etc/sluice",
    ),
    "a spread twice": Invalid(
        template(topologySpreadConstraints=[spread(1), spread(2)]),
        "spec.template.topologySpreadConstraints[1]",
        '"topologyKey":"zone"',
    ),
    "a port of a sidecar twice": Invalid(
        sidecar_ports({"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}),
        "spec.template.sidecars[0].ports[1]",
        '"containerPort":80',
    ),
    "a port of an init container twice": Invalid(
        template(
            initContainers=[
                {"name": "a", "image": "a", "ports": [{"containerPort": 80}, {"containerPort": 80}]}
            ]
        ),
        "spec.template.initContainers[0].ports[1]",
        '"containerPort":80',
    ),
    "mount of nothing": Invalid(
        template(volumeMounts=[{"name": "a", "mountPath": "/a"}]),
        "spec.template.volumeMounts",
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
        "spec.template.sidecars",
        "template.volumes names",
    ),
    "router's label of the operator": Invalid(
        router_template(labels={"app.kubernetes.io/name": "a"}),
        "spec.router.template.labels",
        "app.kubernetes.io",
    ),
    "router's annotation without a name": Invalid(
        router_template(annotations={"/a": "c"}),
        "spec.router.template.annotations",
        "example.com/name",
    ),
    "router's node selector with a space": Invalid(
        router_template(nodeSelector={"a b": "c"}),
        "spec.router.template.nodeSelector",
        "example.com/name",
    ),
    "router's sidecar named router": Invalid(
        router_template(sidecars=[{"name": "router", "image": "a"}]),
        "spec.router.template.sidecars[0].name",
        "the operator's containers",
    ),
    "router's variable of the operator": Invalid(
        router_template(env=[{"name": "POD_NAME", "value": "a"}]),
        "spec.router.template.env[0].name",
        "POD_IP",
    ),
    "router's volume of the operator": Invalid(
        router_template(volumes=[{"name": "sluice-api-keys", "emptyDir": {}}]),
        "spec.router.template.volumes[0].name",
        "sluice-api-keys",
    ),
    "router's mount over its keys": Invalid(
        router_template(
            volumes=[{"name": "a", "emptyDir": {}}],
            volumeMounts=[{"name": "a", "mountPath": "/etc/sluice/api-keys"}],
        ),
        "spec.router.template.volumeMounts[0].mountPath",
        "/etc/sluice",
    ),
    "router's mount of nothing": Invalid(
        router_template(volumeMounts=[{"name": "a", "mountPath": "/a"}]),
        "spec.router.template.volumeMounts",
        "template.volumes names",
    ),
    "mount of nothing in a router's sidecar": Invalid(
        router_template(
            sidecars=[
                {
                    "name": "a",
                    "image": "a",
                    "volumeMounts": [{"name": "a", "mountPath": "/a"}],
                }
            ],
        ),
        "spec.router.template.sidecars",
        "template.volumes names",
    ),
    "sidecar named engine": Invalid(
        template(sidecars=[{"name": "engine", "image": "a"}]),
        "spec.template.sidecars[0].name",
        "operator's container",
    ),
    "no such effect": Invalid(
        template(tolerations=[{"effect": "Never"}]),
        "spec.template.tolerations[0].effect",
    ),
    "an integer as text": Invalid({"replicas": "2"}, "spec.replicas"),
    "an integer as a boolean": Invalid({"replicas": True}, "spec.replicas"),
    "an integer as a fraction": Invalid({"replicas": 2.5}, "spec.replicas"),
    "an integer of 65 bits": Invalid(engine(kvPoolTokens=2**64), "spec.engine.kvPoolTokens"),
    "an integer of the contract's as text": Invalid(
        engine(kvTransfer={"bootstrapPort": "5"}), "spec.engine.kvTransfer.bootstrapPort"
    ),
    "a number as text": Invalid(engine(memoryPercent="50"), "spec.engine.memoryPercent"),
    "a number as a boolean": Invalid(engine(memoryPercent=True), "spec.engine.memoryPercent"),
    "a boolean as text": Invalid({"paused": "true"}, "spec.paused"),
    "a boolean as a number": Invalid({"paused": 1}, "spec.paused"),
    "a text as a number": Invalid({"model": {"uri": "dummy://a", "name": 5}}, "spec.model.name"),
    "a text as a boolean": Invalid(engine(image=False), "spec.engine.image"),
    "a choice as a boolean": Invalid({"rollout": {"strategy": True}}, "spec.rollout.strategy"),
    "a label as a number": Invalid(template(nodeSelector={"a": 1}), "spec.template.nodeSelector.a"),
    "a mapping as a list": Invalid({"engine": []}, "spec.engine"),
    "a mapping as text": Invalid({"engine": "fast"}, "spec.engine"),
    "a list as a mapping": Invalid(template(env={}), "spec.template.env"),
    "null in a list": Invalid(template(env=[None]), "spec.template.env[0]"),
    "null that is required": Invalid({"model": {"uri": None}}, "spec.model.uri"),
    "a quantity as a fraction": Invalid(
        {"resources": {"requests": {"cpu": 0.5}}}, "spec.resources.requests.cpu"
    ),
    "a quantity as a boolean": Invalid(
        {"resources": {"requests": {"cpu": True}}}, "spec.resources.requests.cpu"
    ),
    "a quantity below nothing": Invalid(
        {"resources": {"requests": {"cpu": -1}}}, "spec.resources.requests.cpu"
    ),
    "a quantity with an exponent": Invalid(
        {"resources": {"requests": {"cpu": "1e3"}}}, "spec.resources.requests.cpu"
    ),
    "a variable twice": Invalid(
        template(env=[{"name": "A", "value": "x"}, {"name": "A", "value": "y"}]),
        "spec.template.env[1]",
        '{"name":"A"}',
    ),
    "two volumes at one path": Invalid(
        template(
            volumes=[{"name": "a", "emptyDir": {}}],
            volumeMounts=[{"name": "a", "mountPath": "/a"}, {"name": "a", "mountPath": "/a"}],
        ),
        "spec.template.volumeMounts[1]",
        '{"mountPath":"/a"}',
    ),
}

SEVERAL: dict[str, tuple[dict[str, Any], set[str]]] = {
    "values of one type": (
        {"rollout": {"strategy": "Big"}, "engine": {"dtype": "int3", "pageSize": "16"}},
        {"spec.rollout.strategy", "spec.engine.dtype", "spec.engine.pageSize"},
    ),
    "rules of one type": (
        engine(chunkSize=10, minPrefillTokens=12, maxPrefillTokens=8),
        {f"spec.engine.{key}" for key in ("chunkSize", "minPrefillTokens", "maxPrefillTokens")},
    ),
    "rules of several types": (
        engine(chunkSize=10) | {"prefill": engine(kvTransfer={})},
        {"spec.engine.chunkSize", "spec.prefill.engine.kvTransfer"},
    ),
    "a value, and a rule that waits for it": (
        engine(chunkSize=10, dtype="int3"),
        {"spec.engine.dtype"},
    ),
}
"""Specs with several mistakes, and all fields that the one refusal must name."""

INVALID_NAMES = ("Chat", "1chat", "chat.a", "a" * 41, "chat-")
