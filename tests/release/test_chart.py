"""The chart renders what kubectl applies of manifests/, and its values change what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.command import run
from e2e.cluster.errors import CommandFailedError
from e2e.cluster.toolchain.binaries import ensure_binaries
from release.manifests import ROOT
from tests.release.conftest import Objects, Render, by_name

pytestmark = pytest.mark.apiserver
HELMS_LABELS = (
    "helm.sh/chart", "app.kubernetes.io/version", "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
)  # fmt: skip
ADMISSION = {"admission": {"enabled": True}}
CLUSTER_WIDE = {
    "ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace",
}  # fmt: skip


def kustomized(folder: str) -> Objects:
    kubectl = ensure_binaries().program("kubectl")
    return by_name(run([kubectl, "kustomize", str(ROOT / "manifests" / folder)]))


def without_helms(objects: Objects) -> Objects:
    """As kubectl would apply them."""
    for (kind, _), each in objects.items():
        metadata = each["metadata"]
        for name in HELMS_LABELS:
            metadata.get("labels", {}).pop(name, None)
        if not metadata.get("labels"):
            metadata.pop("labels", None)
        if kind == "CustomResourceDefinition":
            assert metadata.pop("annotations") == {"helm.sh/resource-policy": "keep"}
    return objects


def operator(objects: Objects) -> dict[str, Any]:
    """The operator's pod."""
    found: dict[str, Any] = objects["Deployment", "sluice-operator"]["spec"]["template"]["spec"]
    return found


def environment(objects: Objects) -> dict[str, str]:
    (container,) = operator(objects)["containers"]
    return {each["name"]: each.get("value") for each in container["env"]}


def test_by_default_it_is_manifests_base(render: Render) -> None:
    base = kustomized("base")
    del base["Namespace", "sluice-system"]  # made by `helm install --create-namespace`
    assert without_helms(render()) == base


def test_in_one_namespace_it_is_the_namespaced_overlay(render: Render) -> None:
    overlay, found = kustomized("overlays/namespaced"), without_helms(render(scope="Namespace"))
    for each in (overlay, found):
        (container,) = operator(each)["containers"]
        container["env"].sort(key=lambda variable: variable["name"])
    for variable in operator(overlay)["containers"][0]["env"]:
        if "valueFrom" in variable:
            variable.pop("value", None)  # the null by which the overlay takes the base's away
    assert not CLUSTER_WIDE & {kind for kind, _ in found}
    assert found == overlay


def test_with_monitoring_it_is_manifests_monitoring_too(render: Render) -> None:
    monitoring = kustomized("monitoring")
    for each in monitoring.values():
        each["metadata"]["namespace"] = "sluice-system"
    base = without_helms(render())
    assert without_helms(render(monitoring={"enabled": True})) == base | monitoring


def test_with_admission_it_is_the_overlay_for_it(render: Render) -> None:
    overlay, found = kustomized("overlays/admission"), without_helms(render(**ADMISSION))
    del overlay["Namespace", "sluice-system"]
    for each in (overlay, found):
        (container,) = operator(each)["containers"]
        for parts in (container["env"], container["volumeMounts"], operator(each)["volumes"]):
            parts.sort(key=lambda part: part["name"])
        container["ports"].sort(key=lambda port: port["containerPort"])
    first = ("Job", "sluice-operator-admission")
    annotations = found[first]["metadata"].pop("annotations")
    assert annotations["helm.sh/hook"] == "post-install,post-upgrade"
    del overlay[first]["metadata"]["annotations"]  # for other tools
    assert found == overlay


def test_its_certificate_can_be_cert_managers(render: Render) -> None:
    made, jobs = (
        render("elsewhere", admission={"enabled": True, "certManager": by}) for by in (True, False)
    )
    kinds = {kind for kind, _ in made.keys() - jobs.keys()}
    assert kinds == {"Issuer", "Certificate"}
    gone = {kind for kind, _ in jobs.keys() - made.keys()}
    assert gone >= {"Secret", "Job", "CronJob", "ServiceAccount", "Role", "ClusterRole"}
    webhook = made["ValidatingWebhookConfiguration", "sluice-operator"]
    name = "sluice-operator-admission"
    told = {"cert-manager.io/inject-ca-from": f"elsewhere/{name}"}
    assert webhook["metadata"]["annotations"] == told
    assert webhook["webhooks"][0]["clientConfig"]["service"]["namespace"] == "elsewhere"
    certificate = made["Certificate", name]["spec"]
    assert certificate["dnsNames"] == [f"{name}.elsewhere.svc"]
    (volume,) = (each for each in operator(made)["volumes"] if each["name"] == "admission")
    assert volume["secret"]["secretName"] == certificate["secretName"]


def test_the_jobs_run_where_the_operator_may(render: Render) -> None:
    values = {"imagePullSecrets": [{"name": "pull"}], "nodeSelector": {"role": "system"}}
    found = render(**ADMISSION, **values, images={"registry": "registry.example.com"})
    job, cron = (found[kind, "sluice-operator-admission"]["spec"] for kind in ("Job", "CronJob"))
    assert job["template"]["spec"] == cron["jobTemplate"]["spec"]["template"]["spec"]
    pod = job["template"]["spec"]
    assert pod.items() >= values.items()
    assert pod["containers"][0]["image"] == operator(found)["containers"][0]["image"]


def test_admission_is_nothing_for_one_namespace(render: Render) -> None:
    assert render(scope="Namespace", **ADMISSION) == render(scope="Namespace")


def test_it_follows_the_releases_namespace(render: Render) -> None:
    found = render(namespace="elsewhere", monitoring={"enabled": True}, **ADMISSION)
    assert "sluice-system" not in json.dumps(list(found.values())).replace("sluice-system,", "")
    assert found["Deployment", "sluice-operator"]["metadata"]["namespace"] == "elsewhere"


def test_values_reach_the_operators_pod(render: Render) -> None:
    digest = f"sha256:{'b' * 64}"
    found = render(
        images={
            "registry": "registry.example.com/team/",
            "engine": {"tag": "1.2.3", "digest": digest},
        },
        imagePullSecrets=[{"name": "pull"}],
        replicas=2,
        resources={"limits": {"memory": "1Gi"}},
        nodeSelector={"role": "system"},
        tolerations=[{"key": "system", "operator": "Exists"}],
        priorityClassName="system-cluster-critical",
        podAnnotations={"note": "1"},
        podLabels={"team": "ml"},
        affinity={"nodeAffinity": {}},
        settings={
            "logLevel": "DEBUG",
            "resyncSeconds": 0.5,
            "workers": 4,
            "apiServerPorts": [443, 8443],
            "httpsProxy": "http://proxy.example.com:3128",
        },
        hubCa={"configMap": "company-ca"},
    )
    deployment = found["Deployment", "sluice-operator"]["spec"]
    pod, template = operator(found), deployment["template"]
    (container,) = pod["containers"]
    assert deployment["replicas"] == 2
    assert template["metadata"]["annotations"] == {"note": "1"}
    assert template["metadata"]["labels"]["team"] == "ml"
    assert container["resources"]["limits"] == {"memory": "1Gi", "ephemeral-storage": "256Mi"}
    assert pod["imagePullSecrets"] == [{"name": "pull"}]
    assert pod["nodeSelector"] == {"role": "system"}
    assert pod["tolerations"] == [{"key": "system", "operator": "Exists"}]
    assert pod["priorityClassName"] == "system-cluster-critical"
    variables = environment(found)
    engine = f"registry.example.com/team/sluice/engine:1.2.3@{digest}"
    assert variables["SLUICE_ENGINE_IMAGE"] == engine
    assert container["image"].startswith("registry.example.com/team/sluice/operator:")
    assert variables["SLUICE_LOG_LEVEL"] == "DEBUG"
    assert pod["affinity"] == {"nodeAffinity": {}}
    assert variables["SLUICE_WORKERS"] == "4"
    assert variables["SLUICE_RESYNC_SECONDS"] == "0.5"
    assert variables["SLUICE_API_SERVER_PORTS"] == "443,8443"
    assert variables["SLUICE_HTTPS_PROXY"] == "http://proxy.example.com:3128"
    (trusted,) = (each for each in container["env"] if each["name"] == "SLUICE_HUB_CA")
    assert trusted["valueFrom"]["configMapKeyRef"] == {"name": "company-ca", "key": "ca.crt"}


@pytest.mark.parametrize(
    ("values", "gone"),
    [
        ({"nodes": {"read": False}}, {"sluice-operator-nodes"}),
        ({"userRoles": {"create": False}}, {"sluice-view", "sluice-edit"}),
        (
            {"crds": {"install": False}},
            {"inferenceservices.serving.sluice.dev", "enginepools.serving.sluice.dev"},
        ),
    ],
)
def test_parts_can_be_left_out(render: Render, values: dict[str, Any], gone: set[str]) -> None:
    assert {name for _, name in render().keys() - render(**values).keys()} == gone


def test_alerts_lead_where_the_operators_do(render: Render) -> None:
    base = "https://runbooks.example.com/sluice/"
    found = render(settings={"runbookUrlBase": base}, monitoring={"enabled": True})
    urls = [
        rule["annotations"]["runbook_url"]
        for group in found["PrometheusRule", "sluice"]["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    assert urls
    assert all(url.startswith("https://runbooks.example.com/sluice/Sluice") for url in urls)


@pytest.mark.parametrize(
    ("given", "path"), [("replicas=0", "replicas"), ("settings.logLevel=LOUD", "logLevel")]
)
def test_helm_refuses_what_the_schema_does(helm: Path, chart: Path, given: str, path: str) -> None:
    with pytest.raises(CommandFailedError, match=path):
        run([helm, "template", "sluice", chart, "--set", given])


def test_helms_linter_has_nothing_to_say(helm: Path, chart: Path) -> None:
    told = run([helm, "lint", "--strict", chart])
    assert "[WARNING]" not in told
    assert "1 chart(s) linted, 0 chart(s) failed" in told


@pytest.mark.parametrize("values", [(), ("--set", "crds.install=false,monitoring.enabled=true")])
def test_the_chart_of_the_tree_says_how_it_becomes_whole(
    helm: Path, values: tuple[str, ...]
) -> None:
    with pytest.raises(CommandFailedError, match="make chart"):
        run([helm, "template", "sluice", ROOT / "manifests" / "chart", *values])
