"""What the section `prefill` inherits from the top level, and which numbers two pools have."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import Role
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.resolve.spec_errors import spec_errors

from tests.examples import examples
from tests.operator.examples import IMAGES, service, service_plan

TOP: Manifest = {
    "accelerator": {"product": "NVIDIA-A100-SXM4-80GB", "count": 2},
    "resources": {"limits": {"cpu": 4}},
    "template": {"nodeSelector": {"pool": "a"}},
}
LIMITS: Manifest = {"minReplicas": 1, "maxReplicas": 4}
OWN: Manifest = {"minReplicas": 2, "maxReplicas": 3}


def spec(**parts: object) -> InferenceServiceSpec:
    return InferenceServiceSpec.model_validate({"model": {"uri": "dummy://a"}} | parts)


def test_a_section_that_is_left_out_is_that_of_the_top_level_whole() -> None:
    found = spec(**TOP, prefill={"accelerator": {"product": "NVIDIA-L4"}})
    prefill, decode = found.pool(Role.PREFILL), found.pool(Role.DECODE)
    assert prefill.accelerator is not None
    assert (prefill.accelerator.product, prefill.accelerator.count) == ("NVIDIA-L4", None)
    assert prefill.resources == decode.resources
    assert prefill.template == decode.template
    assert found.inherited(Role.PREFILL) == ("spec.resources", "spec.template")
    assert found.inherited(Role.DECODE) == ()


def test_settings_go_before_those_of_the_top_level_key_by_key_and_sections_whole() -> None:
    engine = {
        "chunkSize": 512,
        "pageSize": 8,
        "hostCache": {"memory": "2Gi", "disk": {"size": "1Ti"}},
    }
    own = {"chunkSize": 256, "hostCache": {"memory": "4Gi"}}
    found = spec(engine=engine, prefill={"engine": own}).engine_of(Role.PREFILL)
    assert (found.chunk_size, found.page_size) == (256, 8)
    assert found.host_cache is not None
    assert (found.host_cache.memory, found.host_cache.disk) == ("4Gi", None)


TOKENS = st.sampled_from([8, 16, 64])
ENGINES = st.fixed_dictionaries(
    {"pageSize": st.sampled_from([8, 16])},
    optional={
        "chunkSize": TOKENS,
        "minPrefillTokens": TOKENS,
        "maxPrefillTokens": TOKENS,
        "kvPoolTokens": st.sampled_from([64, 72]),
    },
)


@given(ENGINES, ENGINES)
@example({"pageSize": 8}, {"pageSize": 16, "chunkSize": 8})
@examples(15)
def test_settings_are_judged_as_they_are_merged(top: Manifest, own: Manifest) -> None:
    own.pop("pageSize")
    split = service({"engine": top, "prefill": {"engine": own}})
    whole = service({"engine": top, "prefill": {"engine": top | own}})
    assert bool(spec_errors(IMAGES, split)) == bool(spec_errors(IMAGES, whole))


@pytest.mark.parametrize(("key", "default"), [("drainSeconds", 120), ("startupSeconds", 600)])
def test_a_default_that_prefill_writes_goes_before_another_value_of_the_top_level(
    key: str, default: int
) -> None:
    parts = {"engine": {key: 60}, "prefill": {"engine": {key: default}}}
    seconds = [pool.manifest["spec"][key] for pool in service_plan(parts).pools]
    assert seconds == [default, 60]


@pytest.mark.parametrize(
    ("parts", "prefill", "decode"),
    [
        ({"prefill": {}}, 1, 1),
        ({"replicas": 3, "prefill": {}}, 1, 3),
        ({"replicas": 3, "prefill": {"replicas": 2}}, 2, 3),
        ({"prefill": {"replicas": 2}}, 2, 1),
        ({"replicas": 0, "prefill": {"replicas": 2}}, 0, 0),
        ({"replicas": 0, "prefill": {"autoscaling": OWN}}, 0, 0),
        ({"autoscaling": LIMITS, "prefill": {}}, (1, 4), (1, 4)),
        ({"autoscaling": LIMITS, "prefill": {"autoscaling": OWN}}, (2, 3), (1, 4)),
        ({"autoscaling": LIMITS, "prefill": {"replicas": 5}}, 5, (1, 4)),
        ({"replicas": 3, "prefill": {"autoscaling": OWN}}, (2, 3), 3),
        ({"autoscaling": {"gpuBudget": 8}, "accelerator": {}, "prefill": {}}, (1, 7), (1, 7)),
        (
            {
                "autoscaling": {"gpuBudget": 8},
                "accelerator": {},
                "prefill": {"accelerator": {"count": 2}},
            },
            (1, 3),
            (1, 6),
        ),
    ],
)
def test_numbers_of_two_pools(
    parts: Manifest, prefill: int | tuple[int, int], decode: int | tuple[int, int]
) -> None:
    found = spec(**parts)
    for role, number in ((Role.PREFILL, prefill), (Role.DECODE, decode)):
        pool = found.pool(role)
        if isinstance(number, int):
            assert (pool.engines, pool.autoscaling) == (number, None), role
        else:
            assert pool.autoscaling is not None
            limits = pool.autoscaling.min_replicas, pool.autoscaling.max_replicas
            assert limits == number, role


def test_two_pools_are_one_where_nothing_sets_them_apart() -> None:
    plan = service_plan({"prefill": {}})
    assert [pool.replicas for pool in plan.pools] == [1, 1]
    assert plan.refusal is None
