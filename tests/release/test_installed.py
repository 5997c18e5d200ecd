"""The chart on a real API server, by the real Helm: installed, upgraded from the release before,
uninstalled, and taken over from kubectl."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sluice_contract.version import VERSION

from e2e.cluster.command import run
from e2e.cluster.controlplane_only import ControlPlane, control_plane
from e2e.cluster.errors import CommandFailedError
from e2e.cluster.toolchain.binaries import ensure_binaries
from release.chart import write_chart
from release.install_yaml import install_yaml
from release.manifests import ROOT
from release.released import Released
from tests.operator.harness.plane import wait_until_served
from tests.patience import PATIENCE_SECONDS
from tests.release.conftest import NAMESPACE

pytestmark = [pytest.mark.apiserver, pytest.mark.xdist_group("chart")]
FORMER = "0.0.9"
EVENTS = "- apiGroups: [events.k8s.io]\n  resources: [events]\n  verbs: [create]\n"
SERVICES = "inferenceservices.serving.sluice.dev"
KEPT = {f"customresourcedefinition.apiextensions.k8s.io/{SERVICES}",
        "customresourcedefinition.apiextensions.k8s.io/enginepools.serving.sluice.dev",
        f"{SERVICES.replace('inferenceservices', 'inferenceservice')}/chat"}  # fmt: skip
Helm = Callable[..., str]
_AFTER_HELM = ("apply", "--server-side", "--force-conflicts")
"""What Helm has left is written by Helm, even where it is to be the same."""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane(controllers=["namespace-controller"]) as running:
        yield running


@pytest.fixture
def run_helm(plane: ControlPlane, helm: Path) -> Helm:
    def called(*words: str | Path) -> str:
        place: list[str | Path] = ["--kubeconfig", plane.kubeconfig, "--namespace", NAMESPACE]
        return run([helm, *words, *place])

    return called


@pytest.fixture(scope="module")
def former_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart of a release whose CRD lacks a field, and whose operator may create no events."""
    root = tmp_path_factory.mktemp("former")
    for name in ("manifests", "crds", "dashboards/generated"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns(".*"))
    _without_field(root / "crds" / f"{SERVICES}.yaml", "paused")
    chart = root / "manifests" / "chart"
    _replace(chart / "Chart.yaml", f"ersion: {VERSION}\n", f"ersion: {FORMER}\n")
    _replace(chart / "templates" / "rbac.yaml", EVENTS, "")
    folder = tmp_path_factory.mktemp("former-chart") / "sluice"
    write_chart(folder, Released(), root)
    return folder


@pytest.fixture(scope="module")
def install_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """install.yaml."""
    path = tmp_path_factory.mktemp("released") / "install.yaml"
    path.write_text(install_yaml(ensure_binaries().program("kubectl"), Released()))
    return path


def _without_field(path: Path, field: str) -> None:
    crd = yaml.safe_load(path.read_text())
    spec_of(crd).pop(field)
    path.write_text(yaml.safe_dump(crd, sort_keys=False))


def _replace(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def spec_of(crd: dict[str, Any]) -> dict[str, Any]:
    """The fields of `spec`."""
    (version,) = crd["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return found


def get(plane: ControlPlane, *words: str) -> dict[str, Any]:
    return dict(json.loads(plane.kubectl("get", *words, "-o", "json")))


def everything(plane: ControlPlane) -> set[str]:
    """The names of all objects, but for what the API server writes by itself."""
    kinds = plane.kubectl("api-resources", "--verbs=list", "-o", "name").split()
    own = {"events", "events.events.k8s.io", "leases.coordination.k8s.io", "componentstatuses",
           "apiservices.apiregistration.k8s.io"}  # fmt: skip
    listed = ",".join(kind for kind in kinds if kind not in own)
    return set(plane.kubectl("get", listed, "-A", "-o", "name").split())


def left_in_the_end(plane: ControlPlane, wanted: Callable[[set[str]], bool]) -> set[str]:
    """Everything, once it is as wanted, or after a while: kinds that were deleted stay listed for a
    moment, and cannot be read then; the API server makes some objects by itself when it starts."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        late = time.monotonic() > deadline
        try:
            found = everything(plane)
        except CommandFailedError:
            if late:
                raise
        else:
            if late or wanted(found):
                return found
        time.sleep(0.2)


def the_same_twice() -> Callable[[set[str]], bool]:
    """Holds for what was found by the look before, too."""
    looks: list[set[str]] = []

    def wanted(found: set[str]) -> bool:
        looks.append(found)
        return looks[-2:-1] == [found]

    return wanted


def make_service(plane: ControlPlane) -> str:
    """Returns its uid."""
    plane.kubectl("wait", "--for=condition=Established", f"crd/{SERVICES}")
    wait_until_served(plane)
    body = {
        "apiVersion": "serving.sluice.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat", "namespace": "default"},
        "spec": {"model": {"uri": "dummy://qwen3-tiny"}},
    }
    plane.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    return str(get(plane, SERVICES, "chat")["metadata"]["uid"])


def test_a_release_from_install_to_uninstall(
    plane: ControlPlane, run_helm: Helm, former_chart: Path, chart: Path
) -> None:
    plane.kubectl("create", "namespace", NAMESPACE)
    before = left_in_the_end(plane, the_same_twice())
    run_helm("install", "sluice", former_chart)
    uid = make_service(plane)
    assert "paused" not in spec_of(get(plane, "crd", SERVICES))

    run_helm("upgrade", "sluice", chart)
    assert "paused" in spec_of(get(plane, "crd", SERVICES))
    deployment = get(plane, "deployment", "sluice-operator", "-n", NAMESPACE)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"sluice/operator:{VERSION}"
    rules = get(plane, "clusterrole", "sluice-operator")["rules"]
    assert "events.k8s.io" in {group for rule in rules for group in rule["apiGroups"]}
    assert get(plane, SERVICES, "chat")["metadata"]["uid"] == uid

    run_helm("rollback", "sluice", "1")
    run_helm("uninstall", "sluice")
    left = left_in_the_end(plane, lambda found: found - before == KEPT)
    assert left - before == KEPT

    run_helm("install", "sluice", chart)
    assert get(plane, SERVICES, "chat")["metadata"]["uid"] == uid
    run_helm("uninstall", "sluice")
    plane.kubectl("delete", "-k", str(ROOT / "crds"))
    left = left_in_the_end(plane, lambda found: found <= before)
    assert left - before == set()


def test_an_install_by_kubectl_is_taken_over(
    plane: ControlPlane, run_helm: Helm, chart: Path, install_file: Path
) -> None:
    plane.kubectl("apply", "--server-side", "-f", str(install_file))
    uid = make_service(plane)
    run_helm("install", "sluice", chart, "--take-ownership", "--force-conflicts")
    labels = get(plane, "deployment", "sluice-operator", "-n", NAMESPACE)["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "Helm"
    assert get(plane, SERVICES, "chat")["metadata"]["uid"] == uid
    run_helm("upgrade", "sluice", chart, "--set", "crds.install=false")
    run_helm("uninstall", "sluice")
    assert get(plane, SERVICES, "chat")["metadata"]["uid"] == uid


def test_install_yaml_is_deleted_as_a_whole(plane: ControlPlane, install_file: Path) -> None:
    plane.kubectl(*_AFTER_HELM, "-f", str(install_file))
    make_service(plane)
    plane.kubectl("delete", "-f", str(install_file))
    left = left_in_the_end(plane, lambda found: not _ours(found))
    assert _ours(left) == []


def _ours(found: set[str]) -> list[str]:
    return [name for name in found if "sluice" in name]


def test_all_rights_in_one_namespace_suffice(plane: ControlPlane, helm: Path, chart: Path) -> None:
    plane.kubectl(*_AFTER_HELM, "-k", str(ROOT / "crds"))
    plane.kubectl("create", "namespace", "team-a")
    words = ("--clusterrole=cluster-admin", "--user=jane", "-n", "team-a")
    plane.kubectl("create", "rolebinding", "sluice-installer", *words)

    def as_jane(*words: str | Path) -> str:
        place: list[str | Path] = ["--kubeconfig", plane.kubeconfig, "--namespace", "team-a"]
        return run([helm, *words, *place, "--kube-as-user", "jane"])

    notes = as_jane("install", "sluice", chart, "--set", "scope=Namespace")
    assert "kubectl get inferenceservices.serving.sluice.dev -n team-a" in notes
    as_jane("upgrade", "sluice", chart, "--reset-then-reuse-values")
    labels = get(plane, "deployment", "sluice-operator", "-n", "team-a")["metadata"]["labels"]
    assert labels["app.kubernetes.io/managed-by"] == "Helm"
    as_jane("uninstall", "sluice")


def test_an_upgrade_keeps_admissions_certificate(
    plane: ControlPlane, run_helm: Helm, chart: Path
) -> None:
    """Which the Job has written; no controller runs it here."""
    values = ("--no-hooks", "--set", "admission.enabled=true,crds.install=false")
    run_helm("install", "sluice", chart, "--create-namespace", *values)
    written = [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "sluice-operator-admission", "namespace": NAMESPACE},
            "data": {"tls.crt": "YQ=="},
        },
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "sluice-operator"},
            "webhooks": [
                {
                    "name": "inferenceservices.serving.sluice.dev",
                    "clientConfig": {"caBundle": some_bundle(plane)},
                }
            ],
        },
    ]
    by_the_job = ("apply", "--server-side", "--field-manager=sluice-certificate", "-f", "-")
    plane.kubectl(*by_the_job, stdin=yaml.safe_dump_all(written))
    before = certificate_of(plane)
    assert all(before)
    run_helm("upgrade", "sluice", chart, *values, "--set", "replicas=2")
    assert certificate_of(plane) == before
    run_helm("uninstall", "sluice", "--no-hooks")
    left = left_in_the_end(plane, the_same_twice())
    assert not [name for name in left if "sluice-operator" in name]


def some_bundle(plane: ControlPlane) -> str:
    """A certificate that the API server takes for one: its own."""
    (cluster,) = yaml.safe_load(plane.kubeconfig.read_text())["clusters"]
    return str(cluster["cluster"]["certificate-authority-data"])


def certificate_of(plane: ControlPlane) -> tuple[Any, Any]:
    """What is served and what is trusted."""
    secret = get(plane, "secret", "sluice-operator-admission", "-n", NAMESPACE)
    webhook = get(plane, "validatingwebhookconfiguration", "sluice-operator")["webhooks"][0]
    return secret.get("data"), webhook["clientConfig"].get("caBundle")
