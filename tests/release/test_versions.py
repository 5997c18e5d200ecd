"""One version: every place says it, and one command changes all."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from sluice_contract.base import ConfigError
from sluice_contract.version import VERSION

from e2e.cluster.command import run
from e2e.images.catalog import IMAGES
from release.manifests import ROOT, image_variables
from release.released import Released
from release.versions import PLACES, check_tag, versions, write_version

DIGEST = f"sha256:{'a' * 64}"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in PLACES:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    return tmp_path


def test_every_place_has_the_version() -> None:
    found = list(versions(ROOT))
    assert {name for name, _ in found} == PLACES.keys()
    assert {version for _, version in found} == {VERSION}


def test_no_other_page_or_manifest_has_it() -> None:
    folders = ("README.md", "docs/how-to", "docs/README.md", "manifests", "images")
    found = run(["git", "-C", ROOT, "grep", "--files-with-matches", "-F", VERSION, "--", *folders])
    assert set(found.split()) <= PLACES.keys()


def test_one_command_changes_all(copy: Path) -> None:
    before = len(list(versions(copy)))
    write_version(copy, "9.8.7-rc.1")
    found = [version for _, version in versions(copy)]
    assert found == ["9.8.7-rc.1"] * before
    with pytest.raises(ConfigError, match=r"MAJOR\.MINOR\.PATCH"):
        write_version(copy, "v1")


def test_another_versions_tag_is_refused() -> None:
    check_tag(f"v{VERSION}")
    with pytest.raises(ConfigError, match=f"v{VERSION}"):
        check_tag("v9.9.9")


def test_released_images_are_named_by_digest(tmp_path: Path) -> None:
    file = tmp_path / "digests.json"
    repositories = {"sluice/engine", "sluice/router"}
    file.write_text(json.dumps(dict.fromkeys(repositories, DIGEST)))
    released = Released.read("registry.example.com/team/", file, repositories)
    engine = f"registry.example.com/team/sluice/engine:{VERSION}@{DIGEST}"
    assert released.reference("sluice/engine") == engine
    for spoilt in ({"sluice/engine": DIGEST}, dict.fromkeys(repositories, "latest")):
        file.write_text(json.dumps(spoilt))
        with pytest.raises(ConfigError, match="sluice/"):
            Released.read("", file, repositories)


def test_every_image_that_is_named_is_one_that_is_built() -> None:
    assert {name.removeprefix("sluice/") for name in image_variables(ROOT).values()} <= set(IMAGES)
