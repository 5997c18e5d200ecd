"""Every manifest of a few services, against golden YAML."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import pytest
import yaml
from sluice_operator.cli.preview import as_text, preview
from sluice_operator.cli.yaml_text import to_yaml_stream
from sluice_operator.kube.kinds import Manifest

from tests.operator.api.documents import document
from tests.operator.examples import FULL_SPEC, IMAGES
from tests.operator.golden import assert_golden

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
SERVICES: dict[str, Manifest] = {
    "minimal": document({}),
    "full": document(FULL_SPEC),
    **{path.stem: yaml.safe_load(path.read_text()) for path in SAMPLES.glob("*.yaml")},
}


WHOLE = ("minimal", "full", "disaggregated")


def shown(name: str, *, called: str | None = None) -> tuple[str, str]:
    """The manifests of a service and its plan; `called`: as if that was its name."""
    service = SERVICES[name]
    if called is not None:
        service = {**service, "metadata": {**service["metadata"], "name": called}}
    result = preview(service, IMAGES)
    assert result.plan.refusal is None
    return to_yaml_stream(result.manifests), as_text(result, lists_objects=True)


@pytest.mark.parametrize("name", WHOLE)
def test_rendered_manifests_are_golden(name: str) -> None:
    manifests, plan = shown(name)
    assert_golden(f"manifests/{name}.yaml", manifests)
    assert_golden(f"manifests/{name}.plan.txt", plan)


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - set(WHOLE)))
def test_other_services_are_golden_as_what_differs(name: str) -> None:
    base = "disaggregated" if SERVICES[name]["spec"].get("mode") == "Disaggregated" else "minimal"
    before = shown(base)
    after = shown(name, called=SERVICES[base]["metadata"]["name"])
    for ending, old, new in zip(("yaml", "plan.txt"), before, after, strict=True):
        lines = difflib.unified_diff(
            old.splitlines(), new.splitlines(), base, name, n=1, lineterm=""
        )
        text = "\n".join(line.rstrip() for line in lines) + "\n"
        assert_golden(f"manifests/{name}.{ending}.diff", text)


def test_scaled_samples_promise_a_first_token_and_leave_queues_to_that() -> None:
    scaled = [spec for name in SAMPLES.glob("*.yaml")
              if "minReplicas" in json.dumps(spec := yaml.safe_load(name.read_text())["spec"])
              or "gpuBudget" in json.dumps(spec)]  # fmt: skip
    assert scaled
    for spec in scaled:
        assert "ttftMilliseconds" in spec["slo"]
        assert "target" not in spec.get("autoscaling", {})


def test_samples_do_not_replace_each_other() -> None:
    samples = [yaml.safe_load(path.read_text()) for path in SAMPLES.glob("*.yaml")]
    names = [sample["metadata"]["name"] for sample in samples]
    assert len(set(names)) == len(names) > 0
