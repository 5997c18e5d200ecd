"""The chart's values: default, schema and a sentence of each, of which values.yaml and its schema
are made.

Images and the operator's settings follow the manifests and the operator's own type; the others are
listed here. Knows no template.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_operator.cli.yaml_text import to_yaml
from sluice_operator.process.settings import Settings, variable_of

from release.released import Released

Schema = dict[str, Any]
_TEXT: Final = {"type": "string"}
_TEXTS: Final = {"type": "object", "additionalProperties": _TEXT}
_OBJECTS: Final = {"type": "array", "items": {"type": "object"}}
_SWITCH: Final = {"type": "boolean"}
_FROM_MANIFESTS: Final = frozenset(
    {
        "namespaces",
        "lease_name",
        "metrics_port",
        "health_port",
        "pod_name",
        "pod_namespace",
        "pod_ip",
        "hub_ca",
        "admission_port",
        "admission_folder",
    }
)
"""Settings of the operator that are part of its manifests, or a value of their own."""
_TOLD: Final = ("title", "description", "default")
"""Of a setting's schema: what the meaning says."""


@dataclass(frozen=True)
class Value:
    """One value of the chart."""

    default: Any
    schema: Schema
    meaning: str


Values = Mapping[str, "Value | Values"]


def chart_values(
    images: Mapping[str, str], resources: Mapping[str, Any], released: Released
) -> Values:
    """All values. `images`: repository by key; `resources`: the container's in the manifests."""
    return {
        "scope": Value(
            "Cluster",
            {"enum": ["Cluster", "Namespace"]},
            "Cluster: serves every namespace. Namespace: its own alone, without any cluster-wide "
            "object: an administrator applies the CRDs (crds.yaml of the release).",
        ),
        "images": {
            "registry": Value(
                released.registry, _TEXT, "Put before each repository: registry.example.com/team"
            ),
            **{key: _image(key, one, released) for key, one in images.items()},
        },
        "imagePullSecrets": Value(
            [], _OBJECTS, "Of the operator's pod. Engines and routers run in other namespaces: "
            "their nodes, or the ServiceAccounts there, need rights to pull.",
        ),
        "replicas": Value(
            1, {"type": "integer", "minimum": 1}, "Pods of the operator; one acts, others stand by."
        ),
        "resources": Value(dict(resources), {"type": "object"}, "Of the operator's container."),
        "nodeSelector": Value({}, _TEXTS, "Of the operator's pod."),
        "tolerations": Value([], _OBJECTS, "Of the operator's pod."),
        "affinity": Value({}, {"type": "object"}, "Of the operator's pod."),
        "priorityClassName": Value("", _TEXT, "Of the operator's pod."),
        "podAnnotations": Value({}, _TEXTS, "Of the operator's pod."),
        "podLabels": Value({}, _TEXTS, "Of the operator's pod, beside its own."),
        "settings": {setting.name: setting.value for setting in SETTINGS},
        "hubCa": {
            "configMap": Value(
                "", _TEXT, "ConfigMap of the release's namespace with PEM certificates of private "
                "authorities, which containers that fetch models trust beside the public ones. "
                "Another content is read when the operator starts.",
            ),
            "key": Value("ca.crt", {"type": "string", "minLength": 1}, "Its key."),
        },
        "nodes": {
            "read": Value(
                True, _SWITCH, "Whether the operator may list nodes, for their GPU labels. Without "
                "it accelerators are what specs say.",
            )
        },
        "userRoles": {
            "create": Value(
                True, _SWITCH, "Whether the cluster's roles view, edit and admin include "
                "InferenceServices.",
            )
        },
        "crds": {
            "install": Value(
                True, _SWITCH, "Whether the chart installs and upgrades the CRDs. They stay when "
                "it is uninstalled.",
            )
        },
        "admission": {
            "enabled": Value(
                False, _SWITCH, "Whether a spec that the operator would refuse is refused as it is "
                "applied, where a replica answers. With `scope: Cluster` alone.",
            ),
            "certManager": Value(
                False, _SWITCH, "With `enabled`: the certificate is cert-manager's; else a Job "
                "makes it and a CronJob renews it.",
            ),
        },
        "monitoring": {
            "enabled": Value(
                False, _SWITCH, "Alerts, recorded series, metrics of the operator; needs the kinds "
                "of the Prometheus operator.",
            ),
            "labels": Value({}, _TEXTS, "By which your Prometheus selects them."),
            "dashboards": Value(
                True, _SWITCH, "With `enabled`: Grafana's pages, as ConfigMaps for its sidecar."
            ),
        },
    }  # fmt: skip


def camel(name: str) -> str:
    """snake_case as camelCase."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


@dataclass(frozen=True)
class Setting:
    """A setting of the operator that is a value of the chart, under `settings`."""

    name: str
    variable: str
    value: Value

    @property
    def is_list(self) -> bool:
        return isinstance(self.value.schema["anyOf"][0].get("items"), dict)


def _settings() -> Iterator[Setting]:
    properties = Settings.model_json_schema()["properties"]
    for name, field in Settings.model_fields.items():
        if name in _FROM_MANIFESTS or name.endswith("_image"):
            continue
        told = properties[name]
        schema = {key: value for key, value in told.items() if key not in _TOLD}
        default = field.get_default()
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        said = f" Default: {shown}." if shown != "" else ""
        meaning = " ".join(f"{told.get('description', '')}{said}".split())
        value = Value(None, {"anyOf": [schema, {"type": "null"}]}, meaning)
        yield Setting(camel(name), variable_of(name), value)


SETTINGS: Final = tuple(_settings())


def _image(key: str, repository: str, released: Released) -> Values:
    digest = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
    needed = {"type": "string", "minLength": 1}
    return {
        "repository": Value(repository, needed, f"Image of the {_words(key)}, without a tag."),
        "tag": Value("", _TEXT, "Default: the version of the chart's application."),
        "digest": Value(
            released.digests.get(repository, ""), digest, "sha256:…; pulled whatever the tag says."
        ),
    }


def values_yaml(values: Values) -> str:
    """values.yaml: each value under its sentence."""
    return "".join(f"{line}\n" for line in _yaml_lines(values))


def _yaml_lines(values: Values, indent: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Value):
            yield f"{indent}# {value.meaning}"
            yield from (indent + line for line in to_yaml({name: value.default}).splitlines())
        else:
            yield f"{indent}{name}:"
            yield from _yaml_lines(value, indent + "  ")


def values_schema(values: Values) -> Schema:
    """values.schema.json. `global` is what a chart that depends on this one may have."""
    inner = _schema(values)
    inner["properties"]["global"] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **inner}


def _schema(values: Values) -> Schema:
    properties = {
        name: value.schema | {"description": value.meaning}
        if isinstance(value, Value)
        else _schema(value)
        for name, value in values.items()
    }
    return {"type": "object", "additionalProperties": False, "properties": properties}


def rows(values: Values, path: str = "") -> Iterator[tuple[str, Value]]:
    """Each value under its path."""
    for name, value in values.items():
        if isinstance(value, Value):
            yield path + name, value
        else:
            yield from rows(value, f"{path}{name}.")


def _words(key: str) -> str:
    return {"gpuEngine": "engine on NVIDIA's GPUs", "fetch": "jobs that fetch models"}.get(key, key)
