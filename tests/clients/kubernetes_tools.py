"""What a platform team's pipeline runs over the manifests, the chart and the metrics. A check that
fails is named; a cluster is not needed.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from benchmarks.peers.environments import Packages, python_with
from e2e.cluster.toolchain.go_install import GoProgram, ensure_program
from e2e.cluster.toolchain.helm import ensure_helm
from tests.clients.environments import NotHereError, Place
from tests.clients.load_tools import Outcomes, outcomes

CHECKOV: Final = Packages(("checkov==3.3.0",))
KUBE_SCORE: Final = GoProgram("github.com/zegl/kube-score/cmd/kube-score", "v1.20.0")
SAMPLE: Final = "manifests/samples/chat.yaml"
KUSTOMIZATIONS: Final = (
    "base", "operator", "monitoring", "overlays/gitops", "overlays/namespaced",
    "overlays/admission",
)  # fmt: skip
VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "template": (),
    "template, scope=Namespace": ("--set", "scope=Namespace"),
    "template, monitoring.enabled=true": ("--set", "monitoring.enabled=true"),
    "template, crds.install=false": ("--set", "crds.install=false"),
}


def _installed(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise NotHereError(f"{name} is not installed")
    return path


def manifests(place: Place) -> list[Path]:
    """The operator's, as kustomize builds them, and those of a service."""
    operator, service = place.folder / "operator.yaml", place.folder / "service.yaml"
    operator.write_text(place.run([_installed("kubectl"), "kustomize", "manifests/operator"]))
    command = [Path(sys.executable).with_name("sluice"), "render", "-f", SAMPLE]
    service.write_text(place.run(command))
    return [operator, service]


def kustomize(place: Place) -> Outcomes:
    command = [_installed("kubectl"), "kustomize"]

    def build(name: str) -> None:
        assert "kind:" in place.run([*command, f"manifests/{name}"])

    return outcomes({f"manifests/{name}": partial(build, name) for name in KUSTOMIZATIONS})


def helm(place: Place) -> Outcomes:
    program = ensure_helm()
    place.run([sys.executable, "-m", "release", "chart", place.folder])
    chart = place.folder / "sluice"

    def lint() -> None:
        assert "0 chart(s) failed" in place.run([program, "lint", chart])

    def template(*options: str) -> None:
        assert "kind: Deployment" in place.run([program, "template", "sluice", chart, *options])

    def refuses_a_wrong_value() -> None:
        with pytest.raises(RuntimeError, match="scope"):
            template("--set", "scope=Galaxy")

    rendered = {name: partial(template, *options) for name, options in VALUES.items()}
    return outcomes({"lint": lint, **rendered, "a wrong value is refused": refuses_a_wrong_value})


def checkov(place: Place) -> Outcomes:
    program = python_with("compat-checkov", CHECKOV).with_name("checkov")
    cases: Outcomes = {}
    for path in manifests(place):
        command = [program, "-f", path, "--framework", "kubernetes", "-o", "json", "--soft-fail"]
        report = json.loads(place.run([*command, "--quiet", "--compact", "--skip-download"]))
        cases |= {f"{path.stem}: check {n}": "" for n in range(report["summary"]["passed"])}
        for check in report["results"]["failed_checks"]:
            cases[f"{path.stem}: {check['check_id']} {check['resource']}"] = check["check_name"]
    return cases


def kube_score(place: Place) -> Outcomes:
    program = ensure_program(KUBE_SCORE)
    cases: Outcomes = {}
    for path in manifests(place):
        command = [program, "score", "--exit-one-on-warning=false", "-o", "json", path]
        for resource in json.loads(place.run(command, any_status=True)):
            cases |= _scores(resource)
    return cases


def _scores(resource: Mapping[str, Any]) -> Outcomes:
    """By check; a grade below 5 is a warning or worse."""
    of = resource["object_name"].partition("/")[2] or resource["object_name"]
    return {
        f"{of}: {check['check']['name']}": ""
        if check["skipped"] or check["grade"] > 5
        else "; ".join(comment["summary"] for comment in check["comments"] or ()) or "warning"
        for check in resource["checks"]
    }


def promtool(place: Place) -> Outcomes:
    program = _installed("promtool")

    def check(url: str) -> None:
        text = httpx.get(f"{url}/metrics").text
        assert text.startswith("# HELP")
        place.run([program, "check", "metrics"], stdin=text)

    return outcomes(
        {"engine": lambda: check(place.engine), "router": lambda: check(place.router_metrics)}
    )
