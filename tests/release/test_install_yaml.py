"""install.yaml is what `kubectl apply -k manifests/base` applies, with the released images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sluice_contract.version import VERSION

from e2e.cluster.command import run
from e2e.cluster.toolchain.binaries import ensure_binaries
from release.install_yaml import crds_yaml, install_yaml
from release.manifests import ROOT, image_variables
from release.released import Released
from tests.release.conftest import Objects, by_name

pytestmark = pytest.mark.apiserver
DIGEST = f"sha256:{'c' * 64}"
OPERATOR = ("Deployment", "sluice-operator")


@pytest.fixture(scope="module")
def kubectl() -> Path:
    return ensure_binaries().program("kubectl")


def container(objects: Objects) -> dict[str, Any]:
    """The operator's, with its images taken out: key → image under `images`."""
    (found,) = objects[OPERATOR]["spec"]["template"]["spec"]["containers"]
    images = {"": found.pop("image")}
    for variable in found["env"]:
        if variable["name"].endswith("_IMAGE"):
            images[variable["name"]] = variable.pop("value")
    found["env"].sort(key=lambda variable: variable["name"])
    return {"images": images, **found}


def test_it_is_manifests_base_with_every_image_by_digest(kubectl: Path) -> None:
    repositories = image_variables(ROOT)
    digests = dict.fromkeys(repositories.values(), DIGEST)
    released = Released("1.2.3", "registry.example.com/team", digests=digests)
    found = by_name(install_yaml(kubectl, released))
    base = by_name(run([kubectl, "kustomize", str(ROOT / "manifests" / "base")]))
    images = container(found).pop("images")
    assert images == {
        key: f"registry.example.com/team/{repository}:1.2.3@{DIGEST}"
        for key, repository in repositories.items()
    }
    container(base)
    assert found == base


def test_a_release_names_its_runbooks(kubectl: Path) -> None:
    source = "https://git.example.com/team/sluice"
    pages = f"{source}/blob/v{VERSION}/docs/runbooks"
    (operator,) = (
        each
        for each in by_name(install_yaml(kubectl, Released(source=source))).values()
        if each["kind"] == "Deployment"
    )
    (own,) = operator["spec"]["template"]["spec"]["containers"]
    assert {"name": "SLUICE_RUNBOOK_URL_BASE", "value": pages} in own["env"]


def test_its_crds_are_those_of_crds_yaml(kubectl: Path) -> None:
    found = by_name(install_yaml(kubectl, Released()))
    crds = by_name(crds_yaml())
    assert len(crds) == 2
    assert crds.items() <= found.items()
