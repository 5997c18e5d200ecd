"""The generated pages of the reference: fresh, whole, and true of what a change does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from sluice_autoscaler.settings import ScalingSettings
from sluice_contract.cluster import labels
from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.defaults_text import FOUND_BY_ENGINE
from sluice_contract.config.engine import EngineSettings
from sluice_contract.config.sizing import resolve_settings
from sluice_operator.api.base import ApiModel
from sluice_operator.api.crd import engine_pool_crd, inference_service_crd
from sluice_operator.api.pools import PrefillSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.engine import PROCESS_TEMPLATE_FIELDS
from sluice_operator.validation.errors import unsupported_parts

from docs.generate.__main__ import generated_pages, main
from docs.generate.fields import Notes, sections_of
from docs.generate.kinds import SHAPE
from docs.generate.markdown import table
from tests.operator.examples import FULL_TEMPLATE, pool_plan, service_plan

REFERENCE: Final = Path(__file__).parents[2] / "docs" / "reference"
PAGES: Final = generated_pages()


@pytest.mark.parametrize("name", PAGES)
def test_pages_are_fresh(name: str) -> None:
    assert (REFERENCE / name).read_text() == PAGES[name], f"{name} is stale; run `make crds`"


def test_the_generator_writes_into_the_folder_given(tmp_path: Path) -> None:
    main([str(tmp_path / "out")])
    assert {path.name for path in (tmp_path / "out").iterdir()} == PAGES.keys()


CRDS: Final = {
    "inferenceservice.md": inference_service_crd(),
    "enginepool.md": engine_pool_crd(),
}


@pytest.mark.parametrize("page", CRDS)
def test_every_field_of_a_crd_is_told_with_its_description(page: str) -> None:
    schema = CRDS[page]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    lines = (PAGES["inferenceservice.md"] + PAGES[page]).splitlines()
    for root in ("spec", "status"):
        for path, node in _fields(schema[root], root):
            name, said = path.rpartition(".")[2], node["description"].partition(" Default: ")[0]
            assert any(f"{name}` " in row and said in row for row in lines), f"{path}: {said}"


def test_a_refused_field_says_what_is_allowed_so_far() -> None:
    spec = {
        "model": {"uri": "dummy://tiny"},
        "slo": {"percentile": 90},
        "engine": {"tensorParallelSize": 2, "cudaGraphMaxBatch": 8},
        "prefill": {},
    }
    page = PAGES["inferenceservice.md"]
    refused = {each.field for each in unsupported_parts(InferenceServiceSpec.model_validate(spec))}
    assert len(refused) == 3
    for field in refused:
        rows = [row for row in page.splitlines() if row.startswith(f"| `{field}` ")]
        assert any("**So far only**" in row or "**Not yet**" in row for row in rows), field


def test_the_shape_is_a_valid_spec_with_every_field_of_its_top_level_and_of_prefill() -> None:
    spec = yaml.safe_load(SHAPE)["spec"]
    parsed = InferenceServiceSpec.model_validate(spec)
    assert spec.keys() == _names(InferenceServiceSpec)
    alternative = {"autoscaling"}
    assert spec["prefill"].keys() == _names(PrefillSpec) - alternative
    assert parsed.pool(Role.DECODE).replicas == spec["replicas"]
    assert f"```yaml\n{SHAPE}```" in PAGES["inferenceservice.md"]


SAME, ANOTHER = "same revision", "another revision"
POOL = {"endpointPickerRef": {"name": "picker", "port": 9002}}


@pytest.mark.parametrize(
    ("change", "revision", "pods_replaced", "routers_replaced"),
    [
        ({"replicas": 5}, SAME, False, False),
        ({"router": {"image": "another"}}, SAME, False, True),
        ({"router": {"route": {"parentRefs": [{"name": "public"}]}}}, SAME, False, False),
        ({"router": {"inferencePool": POOL}}, SAME, False, False),
        ({"router": {"template": {"tolerations": [{"key": "a"}]}}}, SAME, False, True),
        ({"engine": {"startupSeconds": 60}}, SAME, True, False),
        ({"engine": {"drainSeconds": 60}}, ANOTHER, True, True),
        ({"engine": {"chunkSize": 64}}, ANOTHER, True, False),
        ({"slo": {"itlMilliseconds": 50}}, ANOTHER, True, False),
        ({"model": {"uri": "dummy://another"}}, ANOTHER, True, False),
        ({"resources": {"requests": {"cpu": 2}}}, ANOTHER, True, False),
        *(
            (
                {"template": {name: FULL_TEMPLATE[name]}},
                ANOTHER if name in PROCESS_TEMPLATE_FIELDS else SAME,
                True,
                name in ("imagePullSecrets", "tolerations", "priorityClassName"),
            )
            for name in sorted(FULL_TEMPLATE.keys() - {"volumeMounts"})
        ),
    ],
    ids=str,
)
def test_a_change_does_what_the_page_says(
    change: Manifest, revision: str, pods_replaced: bool, routers_replaced: bool
) -> None:
    before, after = pool_plan(), pool_plan(change)
    assert (before.revision == after.revision) == (revision == SAME)
    assert (_pod(before.apply, "engine") != _pod(after.apply, "engine")) == pods_replaced
    routers = [_pod(service_plan(spec).apply, "router") for spec in (None, change)]
    assert (routers[0] != routers[1]) == routers_replaced


def test_a_paused_service_is_left_as_it_is() -> None:
    assert service_plan({"paused": True, "engine": {"chunkSize": 64}}).apply == ()


def test_every_setting_of_engines_is_a_row_with_its_default() -> None:
    page = PAGES["configuration.md"]
    settings = resolve_settings(EngineSettings(), Accelerator())
    for name, field in EngineSettings.model_fields.items():
        cells = [cell.strip() for cell in _line(page, str(field.alias)).split("|")]
        if name in settings and name not in FOUND_BY_ENGINE:
            value = settings[name].value
            told = value if isinstance(value, str) else json.dumps(value)
            assert told in cells[3].replace(";", "").split(), (name, cells)


def test_what_targets_are_when_left_out_is_what_the_autoscaler_takes() -> None:
    page = PAGES["inferenceservice.md"]
    rows = [
        line.split("|")
        for line in page.splitlines()
        if line.startswith("| `spec.autoscaling.target.")
    ]
    said = {row[1].strip(" `").rpartition(".")[2]: row[3].strip() for row in rows}
    assert said == {
        "queueMilliseconds": "half of slo.ttftMilliseconds; 1000 without it",
        "prefillQueue": "off",
        "decodeQueue": "off",
    }
    assert ScalingSettings({}).allowed_queue_seconds == 1.0
    assert ScalingSettings({}, ttft_seconds=3.0).allowed_queue_seconds == 1.5
    assert (ScalingSettings({}).prefill_queue, ScalingSettings({}).decode_queue) == (None, None)


def test_a_part_that_stands_in_two_places_is_told_once() -> None:
    part = {"type": "object", "properties": {n: {"type": "string"} for n in "abc"}}
    root = {"properties": {"one": part, "two": {"type": "array", "items": part}}}
    (section,) = sections_of(root, "spec", (), Notes(), {})
    rows = {row.path: row.meaning for row in section.rows}
    assert list(rows) == ["spec.one", "spec.one.a", "spec.one.b", "spec.one.c", "spec.two"]
    assert rows["spec.two"] == "Fields as of `spec.one`."


def test_tables_are_aligned_and_take_any_text() -> None:
    lines = list(table(("a", "b"), [("x|y", "1"), ("long cell", "2 | 3")]))
    assert len({line.rindex(" | ") for line in lines[:3]}) == 1
    assert lines[-1] == "| long cell | 2 \\| 3 |"


def _fields(node: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, child in node.get("properties", {}).items():
        yield f"{path}.{name}", child
        suffix = "[]" if "items" in child else ""
        yield from _fields(child.get("items", child), f"{path}.{name}{suffix}")


def _names(model: type[ApiModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def _line(page: str, field: str) -> str:
    return next(line for line in page.splitlines() if line.startswith(f"| `{field}` "))


def _pod(manifests: Iterable[Manifest], component: str) -> Manifest:
    deployments = (m for m in manifests if m["kind"] == "Deployment")
    found: Manifest = next(
        m["spec"]["template"]
        for m in deployments
        if m["metadata"]["labels"][labels.COMPONENT] == component
    )
    return found
