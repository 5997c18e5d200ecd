"""Templates and resources of pods that must be refused, and the field the refusal must name."""

from __future__ import annotations

from tests.operator.api.valid_specs import (
    Invalid,
    mounted,
    router_template,
    sidecar_ports,
    spread,
    template,
)

INVALID_PODS: dict[str, Invalid] = {
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
    "a label as a number": Invalid(template(nodeSelector={"a": 1}), "spec.template.nodeSelector.a"),
    "a list as a mapping": Invalid(template(env={}), "spec.template.env"),
    "null in a list": Invalid(template(env=[None]), "spec.template.env[0]"),
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
