"""The Helm chart, made from manifests/, crds/ and dashboards/, and from the templates in chart/
that have no counterpart there.

Knows which value goes where; what values there are is in `values`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from sluice_operator.cli.yaml_text import to_yaml
from sluice_operator.manifests.alerting import RUNBOOK_URL_BASE

from release.manifests import NAMESPACE, ROOT, Manifest, documents, image_variables, operators_own
from release.released import Released
from release.templating import Block, Inline, entry, to_template, when
from release.values import SETTINGS, Values, camel, chart_values, values_schema, values_yaml

NAME: Final = "sluice"
OLDEST_KUBERNETES: Final = "1.29"
STATIC: Final = Path(__file__).parent / "chart"
KEEP: Final = {"helm.sh/resource-policy": "keep"}
LABELS: Final = Block('{{- include "sluice.labels" . | nindent INDENT }}')
IN_CLUSTER: Final = 'eq .Values.scope "Cluster"'
ADMISSION: Final = f"and ({IN_CLUSTER}) .Values.admission.enabled"
BY_CERT_MANAGER: Final = ".Values.admission.certManager"
HOOK: Final = {
    "helm.sh/hook": "post-install,post-upgrade",
    "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
}
_CERTIFICATES: Final = Block(
    "{{- with .Values.hubCa.configMap }}\n- name: SLUICE_HUB_CA\n  valueFrom:\n"
    "    configMapKeyRef: {name: {{ . | quote }}, key: {{ $.Values.hubCa.key | quote }}}\n"
    "{{- end }}"
)
NAMESPACED: Final = frozenset(
    {"ServiceAccount", "Role", "RoleBinding", "Deployment", "PodDisruptionBudget"}
)


def write_chart(folder: Path, released: Released, root: Path = ROOT) -> None:
    """The chart's folder, made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(STATIC, folder)
    for name, text in chart_files(released, root).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def chart_files(released: Released, root: Path = ROOT) -> dict[str, str]:
    """Path in the chart → content, of the files that are made."""
    values = values_of(released, root)
    base, overlay = root / "manifests" / "base", root / "manifests" / "overlays" / "namespaced"
    return {
        "Chart.yaml": to_yaml(_chart_yaml(released.version)),
        "values.yaml": values_yaml(values),
        "values.schema.json": json.dumps(values_schema(values), indent=2) + "\n",
        "templates/operator.yaml": _templates(_operator(root)),
        "templates/cluster_role.yaml": _optional(IN_CLUSTER, base / "cluster_role.yaml"),
        "templates/nodes.yaml": _optional(
            f"and ({IN_CLUSTER}) .Values.nodes.read", base / "nodes.yaml"
        ),
        "templates/user_roles.yaml": _optional(
            f"and ({IN_CLUSTER}) .Values.userRoles.create", base / "user_roles.yaml"
        ),
        "templates/role.yaml": _optional('eq .Values.scope "Namespace"', overlay / "role.yaml"),
        "templates/crds.yaml": when(
            f"and ({IN_CLUSTER}) .Values.crds.install",
            '{{- range $path, $_ := .Files.Glob "definitions/*.yaml" }}\n---\n'
            "{{ $.Files.Get $path }}\n{{- end }}\n",
        ),
        "templates/admission.yaml": when(ADMISSION, "---\n".join(_admission(root))),
        **_definitions(root),
        **_monitoring(root),
    }  # fmt: skip


def values_of(released: Released, root: Path = ROOT) -> Values:
    """The chart's values, with the released images as their defaults."""
    variables = image_variables(root)
    repositories = {_key(variable): repository for variable, repository in variables.items()}
    deployment = next(each for each in operators_own(root) if each["kind"] == "Deployment")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return chart_values(repositories, container["resources"], released)


def _chart_yaml(version: str) -> Manifest:
    return {
        "apiVersion": "v2",
        "name": NAME,
        "description": "The operator of Sluice, which serves large language models",
        "type": "application",
        "version": version,
        "appVersion": version,
        "kubeVersion": f">={OLDEST_KUBERNETES}.0-0",
    }


def _operator(root: Path) -> Iterable[Manifest]:
    for manifest in operators_own(root):
        if manifest["kind"] == "Deployment":
            manifest = _with_admission(_deployment(manifest), root)
        yield manifest


def _deployment(manifest: Manifest) -> Manifest:
    changed = deepcopy(manifest)
    changed["spec"]["replicas"] = Inline("{{ .Values.replicas }}")
    template = changed["spec"]["template"]
    labels = template["metadata"]["labels"] | entry(_inserted(".Values.podLabels"))
    template["metadata"] = _with_value("annotations", "podAnnotations") | {"labels": labels}
    pod = template["spec"]
    for name in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity"):
        pod |= _with_value(name, name)
    pod |= entry("{{- with .Values.priorityClassName }}\npriorityClassName: {{ . }}\n{{- end }}")
    (container,) = pod["containers"]
    container["image"] = _image("operator")
    given = [_variable(each) for each in container["env"]]
    container["env"] = [*given, *_setting_entries(), _CERTIFICATES]
    del container["resources"]
    container |= _with_value("resources", "resources")
    return changed


def _with_admission(manifest: Manifest, root: Path) -> Manifest:
    """With what its patch adds, where admission is on."""
    (patch,) = documents(root / "manifests" / "admission" / "webhook" / "deployment_patch.yaml")
    pod, added = (each["spec"]["template"]["spec"] for each in (manifest, patch))
    (container,), (more,) = pod["containers"], added["containers"]
    for target, source, names in (
        (container, more, ("env", "ports", "volumeMounts")),
        (pod, added, ("volumes",)),
    ):
        for name in names:
            target[name] = [*target[name], Block(when(ADMISSION, to_yaml(source[name])))]
    return manifest


def _admission(root: Path) -> Iterable[str]:
    """The webhook, and its certificate in one of two ways."""
    folder = root / "manifests" / "admission"
    (annotation,) = documents(folder / "cert-manager" / "annotation_patch.yaml")
    for manifest in documents(folder / "webhook" / "webhook.yaml"):
        if manifest["kind"] == annotation["kind"]:
            annotated = _with_namespace({"annotations": annotation["metadata"]["annotations"]})
            manifest["metadata"] |= entry(when(BY_CERT_MANAGER, to_template(annotated)))
        yield _templates([manifest])
    certificate = folder / "cert-manager" / "certificate.yaml"
    yield _optional(BY_CERT_MANAGER, certificate)
    files = [folder / "self-signed" / name for name in ("secret.yaml", "rights.yaml", "jobs.yaml")]
    manifests = (_job(manifest) for file in files for manifest in documents(file))
    yield when(f"not {BY_CERT_MANAGER}", _templates(manifests))


def _job(manifest: Manifest) -> Manifest:
    """A Job or CronJob with the chart's values; others, as they are."""
    if manifest["kind"] == "Job":
        manifest["metadata"]["annotations"] = HOOK
        job = manifest["spec"]
    elif manifest["kind"] == "CronJob":
        job = manifest["spec"]["jobTemplate"]["spec"]
    else:
        return manifest
    pod = job["template"]["spec"]
    for name in ("imagePullSecrets", "nodeSelector", "tolerations"):
        pod |= _with_value(name, name)
    pod["containers"][0]["image"] = _image("operator")
    return manifest


def _variable(each: Manifest) -> Manifest | Block:
    if each["name"].endswith("_IMAGE"):
        return each | {"value": _image(_key(each["name"]))}
    if each["name"] != "SLUICE_NAMESPACES":
        return each
    return Block(
        '- name: SLUICE_NAMESPACES\n  {{- if eq .Values.scope "Namespace" }}\n'
        "  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}\n  {{- else }}\n"
        '  value: ""\n  {{- end }}'
    )


def _setting_entries() -> Iterable[Block]:
    for setting in SETTINGS:
        text = 'join "," .' if setting.is_list else "."
        yield Block(
            f"{{{{- with .Values.settings.{setting.name} }}}}\n"
            f"- {{name: {setting.variable}, value: {{{{ {text} | toString | quote }}}}}}\n"
            "{{- end }}"
        )


def _image(key: str) -> Inline:
    return Inline(f'{{{{ include "sluice.image" (list . .Values.images.{key}) | quote }}}}')


def _key(variable: str) -> str:
    """SLUICE_GPU_ENGINE_IMAGE: gpuEngine; the operator's own image has no variable."""
    name = variable.removeprefix("SLUICE_").removesuffix("_IMAGE").lower()
    return camel(name or "operator")


def _with_value(key: str, value: str) -> Manifest:
    """The entry `key`, where the value is not empty."""
    inner = "{{- toYaml . | nindent INDENT+2 }}"
    return entry(f"{{{{- with .Values.{value} }}}}\n{key}:\n  {inner}\n{{{{- end }}}}")


def _inserted(value: str) -> str:
    return f"{{{{- with {value} }}}}\n{{{{- toYaml . | nindent INDENT }}}}\n{{{{- end }}}}"


def _optional(condition: str, path: Path) -> str:
    return when(condition, _templates(documents(path)))


def _templates(manifests: Iterable[Manifest]) -> str:
    return "---\n".join(to_template(_released(each)) for each in manifests)


def _released(manifest: Manifest) -> Manifest:
    """With Helm's labels, in the release's namespace."""
    metadata = dict(manifest["metadata"])
    if manifest["kind"] in NAMESPACED:
        metadata["namespace"] = NAMESPACE
    metadata["labels"] = {**metadata.get("labels", {}), LABELS: None}
    changed: Manifest = _with_namespace(manifest | {"metadata": metadata})
    return changed


def _with_namespace(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_namespace(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_namespace(inner) for inner in value]
    if isinstance(value, str) and NAMESPACE in value:
        return Inline(value.replace(NAMESPACE, "{{ .Release.Namespace }}"))
    return value


def _definitions(root: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted((root / "crds").glob("*.yaml")):
        (manifest,) = documents(path)
        manifest["metadata"]["annotations"] = KEEP
        found[f"definitions/{path.name}"] = to_yaml(manifest)
    return found


def _monitoring(root: Path) -> dict[str, str]:
    generated = root / "dashboards" / "generated"
    monitor = root / "manifests" / "monitoring" / "pod_monitor.yaml"
    pages = sorted(generated.glob("*.json"))
    return {
        "monitoring/pod_monitor.yaml": monitor.read_text(),
        "monitoring/rules.yaml": (generated / "prometheus_rule.yaml").read_text(),
        "monitoring/runbook_url_base": RUNBOOK_URL_BASE,
        **{f"monitoring/{page.name}": page.read_text() for page in pages},
    }
