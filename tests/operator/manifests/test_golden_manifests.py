"""Every manifest of a few services, against golden YAML."""

from __future__ import annotations

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


@pytest.mark.parametrize("name", SERVICES)
def test_rendered_manifests_are_golden(name: str) -> None:
    shown = preview(SERVICES[name], IMAGES)
    assert shown.plan.refusal is None
    assert_golden(f"manifests/{name}.yaml", to_yaml_stream(shown.manifests))
    assert_golden(f"manifests/{name}.plan.txt", as_text(shown))


def test_samples_do_not_replace_each_other() -> None:
    samples = [yaml.safe_load(path.read_text()) for path in SAMPLES.glob("*.yaml")]
    names = [sample["metadata"]["name"] for sample in samples]
    assert len(set(names)) == len(names) > 0
