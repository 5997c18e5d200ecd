"""A spec that is spelled in another way asks for the same: nothing is written, nothing restarts."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.quantities import amount
from sluice_operator.cli.preview import preview
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest, of_kind
from sluice_operator.manifests.engine import revision
from sluice_operator.service.plan import plan_service
from sluice_operator.service.revisions.parts import spec_hash
from sluice_operator.service.revisions.revision import revisions_of

from tests.examples import examples
from tests.operator.examples import FULL_SPEC, IMAGES, live, service, service_observed, written
from tests.operator.manifests.test_golden_manifests import SAMPLES

UNITS: Final = ("", "m", "M", "G", "Ki", "Mi", "Gi")
SECTIONS: Final = ("engine", "metrics", "resources", "rollout", "router", "template")
EMPTY: Final[dict[str, Manifest]] = {
    "affinity": {"nodeAffinity": {}, "podAffinity": {}},
    "resources": {"limits": {}, "requests": {}},
    "sidecars": {"args": [], "env": [], "resources": {"limits": {}}},
    "target": {},
    "template": {"affinity": {}, "labels": {}, "sidecars": [], "tolerations": [], "volumes": []},
}
"""What says nothing, by the field that it is below."""
DEFAULTS: Final[dict[str, Manifest]] = {
    "accelerator": {"count": 1, "resourceName": "nvidia.com/gpu"},
    "emptyDir": {"medium": ""},
    "engine": {"drainSeconds": 120, "startupSeconds": 600},
    "ports": {"protocol": "TCP"},
    "router": {"replicas": 2},
    "slo": {"percentile": 95},
    "spec": {"paused": False},
    "tolerations": {"operator": "Equal"},
    "tracing": {"samplePercent": 100},
    "volumeMounts": {"readOnly": False, "subPath": ""},
}
"""What holds anyway, by the field that it is below."""
SPELT: Final = ("requests", "limits", "sizeLimit", "hostCache", "disk", "cache")
"""Fields below which texts are amounts."""
PERCENTAGES: Final = ("percentile", "samplePercent")

RICH: Final[Manifest] = {
    "model": {"uri": "hf://org/m", "cache": {"size": "50Gi"}},
    "accelerator": {"product": "NVIDIA-H100-80GB-HBM3"},
    "resources": {"requests": {"cpu": "1500m", "memory": "64Gi"}, "limits": {"memory": "128G"}},
    "template": {
        "tolerations": [{"key": "gpu", "value": "a"}],
        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        "sidecars": [{"name": "log", "image": "l:1", "ports": [{"containerPort": 53}]}],
    },
    "engine": {"hostCache": {"memory": "2Gi", "disk": {"size": "100G"}}},
    "slo": {"ttftMilliseconds": 500, "percentile": 99},
    "tracing": {"endpoint": "http://collector:4318", "samplePercent": "0.5"},
    "prefill": {"resources": {}, "template": {}},
    "router": {"template": {"labels": {"team": "a"}}},
}
SPECS: Final = [
    RICH,
    FULL_SPEC,
    *(yaml.safe_load(path.read_text())["spec"] for path in sorted(SAMPLES.glob("*.yaml"))),
]


def respelled(draw: st.DataObject, value: Any, path: tuple[str, ...]) -> Any:
    """A value that means the same."""
    if isinstance(value, dict):
        return _with_more(draw, {k: respelled(draw, v, (*path, k)) for k, v in value.items()}, path)
    if isinstance(value, list):
        return [respelled(draw, entry, path) for entry in value]
    if path[-1] in PERCENTAGES:
        return draw.draw(st.sampled_from([value, *_percentages(value)]))
    is_amount = not isinstance(value, bool) and amount(value) is not None
    if is_amount and set(path[-2:]) & set(SPELT):
        return draw.draw(st.sampled_from([value, *_amounts(value)]))
    return value


def _with_more(draw: st.DataObject, section: Manifest, path: tuple[str, ...]) -> Manifest:
    name = path[-1]
    more = EMPTY.get(name, {}) | DEFAULTS.get(name, {})
    if path == ("spec",):
        more |= {key: {} for key in SECTIONS}
    if name == "tolerations" and section.get("operator") == "Exists":
        return section
    if path[-2:] == ("router", "template"):  # an empty list of it inherits nothing
        more = {"labels": {}, "sidecars": [], "affinity": {"nodeAffinity": {}}}
    if name == "prefill":  # an empty section of it inherits nothing
        more |= {"engine": {}}
    return {key: copy.copy(v) for key, v in more.items() if draw.draw(st.booleans())} | section


def _amounts(value: Any) -> Iterator[int | str]:
    exact = amount(value)
    assert exact is not None
    for unit in UNITS:
        of_unit = exact / (amount(f"1{unit}") or 1)
        if of_unit == int(of_unit) and 0 < of_unit < 10**12:
            yield f"{int(of_unit)}{unit}"
            if not unit:
                yield int(of_unit)


def _percentages(value: Any) -> Iterator[int | str]:
    exact = Decimal(value)
    yield f"{exact:.2f}"
    if exact == int(exact):
        yield int(exact)


@pytest.mark.parametrize(
    "spec",
    [
        # The two with most fields, and one sample in three.
        pytest.param(spec, id=str(place), marks=pytest.mark.full if place > 1 and place % 3 else ())
        for place, spec in enumerate(SPECS)
    ],
)
@examples(12)
@given(draw=st.data())
def test_equal_specs_are_the_same_revision(spec: Manifest, draw: st.DataObject) -> None:
    other = respelled(draw, spec, ("spec",))
    first, second = preview(service(spec), IMAGES), preview(service(other), IMAGES)
    assert second.manifests == first.manifests
    assert first.plan.decided is not None
    assert second.plan.spec is not None
    there = revisions_of((first.plan.decided,))
    assert there.of(second.plan.spec) is there.all[0]
    assert spec_hash(other) == spec_hash(spec)


@pytest.mark.parametrize("prefill", [{}, {"prefill": {}}])
@pytest.mark.parametrize("to_gpus", [True, False])
def test_an_empty_accelerator_is_a_gpu(prefill: Manifest, to_gpus: bool) -> None:
    on_cpus, on_gpus = service(prefill), service({**prefill, "accelerator": {}})
    before, after = (on_cpus, on_gpus) if to_gpus else (on_gpus, on_cpus)
    there = [live(child) for child in written(plan_service(service_observed(before)))]
    plan = plan_service(service_observed(after, there))
    image = IMAGES.gpu_engine if to_gpus else IMAGES.engine
    assert {pool.manifest["spec"]["image"] for pool in plan.pools} == {image}
    former = {pool["spec"]["role"]: _revision(pool) for pool in of_kind(tuple(there), ENGINE_POOL)}
    assert all(_revision(pool.manifest) != former[pool.role] for pool in plan.pools)


def _revision(pool: Manifest) -> str:
    return revision(EnginePoolSpec.model_validate(pool["spec"]))
