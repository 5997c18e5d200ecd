"""The release workflow builds every image that the manifests name, and calls what is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from kernel_archive import ARCHIVE

from e2e.cluster.toolchain.helm import HELM
from e2e.images.catalog import IMAGES
from release.__main__ import parser, write_checksums
from release.manifests import ROOT, image_variables

JOBS = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yaml").read_text())["jobs"]
STEPS: list[dict[str, Any]] = [step for job in JOBS.values() for step in job["steps"]]


def test_every_image_of_the_manifests_is_built_as_in_the_catalogue() -> None:
    built = {each["name"]: each for each in JOBS["images"]["strategy"]["matrix"]["include"]}
    assert {f"sluice/{name}" for name in built} == set(image_variables(ROOT).values())
    for name, each in built.items():
        assert each["file"] == IMAGES[name].dockerfile
        arguments = [f"{key}={value}" for key, value in IMAGES[name].arguments]
        assert each.get("build-args", "").split() == arguments


def test_its_commands_are_those_of_the_release_package() -> None:
    calls = [
        line.partition("-m release ")[2]
        for step in STEPS
        for line in step.get("run", "").splitlines()
        if "-m release " in line
    ]
    assert {parser().parse_args(shlex.split(call)).command for call in calls} == {
        "check-tag", "files",
    }  # fmt: skip


def test_a_release_has_the_kernels_of_its_engine_for_gpus(tmp_path: Path) -> None:
    (build,) = (step["with"] for step in STEPS if step.get("with", {}).get("target"))
    assert f"AS {build['target']}\n" in (ROOT / "images" / "engine.Dockerfile").read_text()
    folder = build["outputs"].removeprefix("type=local,dest=")
    (stored, loaded) = (
        step["with"] for step in STEPS if step.get("with", {}).get("name") == "gpu-kernels"
    )
    assert stored["path"] == f"{folder}/{ARCHIVE}"
    (release,) = (step["run"] for step in STEPS if "gh release create" in step.get("run", ""))
    assert f"{loaded['path']}/{ARCHIVE}" in release.split()
    (tmp_path / ARCHIVE).write_text("kernels")
    write_checksums(tmp_path)
    assert (tmp_path / "SHA256SUMS").read_text().endswith(f"  {ARCHIVE}\n")


def test_helm_is_the_version_that_the_tests_use() -> None:
    (step,) = (step for step in STEPS if step.get("uses", "").startswith("azure/setup-helm"))
    assert step["with"]["version"] == HELM.version


def test_every_action_is_pinned() -> None:
    """By commit, also in the other workflows: a tag may be moved."""
    files = [*(ROOT / ".github").glob("workflows/*.yaml"), *(ROOT / ".github").glob("actions/*/*")]
    documents = [yaml.safe_load(file.read_text()) for file in files]
    jobs = [job for each in documents for job in each.get("jobs", {"": each.get("runs")}).values()]
    steps = [step for job in jobs for step in job["steps"]]
    assert len(steps) > len(STEPS)
    for step in steps:
        if "uses" in step and not step["uses"].startswith("./"):
            assert re.search(r"@[0-9a-f]{40}$", step["uses"]), step["uses"]


def test_jobs_have_the_rights_they_need_and_no_more() -> None:
    allowed = {"contents", "packages", "id-token", "attestations"}
    for name, job in JOBS.items():
        assert job["permissions"].keys() <= allowed, name
        assert (job["permissions"]["contents"] == "write") == (name == "files")
