"""A service of two pools serves when an engine of each answers that can work with the other."""

from __future__ import annotations

import pytest
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import KvFingerprint
from sluice_operator.api.conditions import Check
from sluice_operator.kube.kinds import Manifest
from sluice_operator.service.plan import plan_service
from sluice_operator.service.report.status import service_status
from sluice_operator.service.rollout.pairing import PAIRED, could_be_equal, paired

from tests.operator.examples import (
    NOW,
    complete,
    live,
    pods,
    service,
    service_observed,
    service_plan,
    written,
)
from tests.operator.statuses import condition

APART: Manifest = {"prefill": {}}
LARGER: Manifest = APART | {"engine": {"pageSize": 32}}
BEHIND = Check("False", "RollingOut", "the others are starting.")
PREFILL, DECODE = Role.PREFILL, Role.DECODE
OLD, NEW = 0, 1

Ready = dict[Role, tuple[int, int]]
"""How many engines of the former and of the wanted revision answer."""
CROSSED: Ready = {PREFILL: (0, 1), DECODE: (1, 0)}


def _files(spec: Manifest) -> dict[Role, Manifest]:
    return {pool.role: live(pool.config_map) for pool in service_plan(spec).pools}


def _pool(role: Role, ready: tuple[int, int]) -> Manifest:
    revisions = [
        {"name": str(number), "config": files[role]["metadata"]["name"], "ready": count,
         "replicas": 1, "current": number == NEW}
        for number, (files, count) in enumerate(zip((FORMER, WANTED), ready, strict=True))
    ]  # fmt: skip
    return {"spec": {"role": role.value}, "status": {"revisions": revisions}}


FORMER, WANTED = _files(APART), _files(LARGER)
FILES = (*FORMER.values(), *WANTED.values())


def _check(ready: Ready, files: tuple[Manifest, ...] = FILES) -> Check:
    return paired([_pool(role, counts) for role, counts in ready.items()], files, BEHIND)


@pytest.mark.parametrize(
    "ready",
    [
        {PREFILL: (0, 1), DECODE: (0, 1)},
        {PREFILL: (1, 1), DECODE: (1, 0)},
        {PREFILL: (1, 0), DECODE: (2, 3)},
    ],
)
def test_a_revision_that_answers_in_both_pools_is_a_pair(ready: Ready) -> None:
    assert _check(ready) == PAIRED


def test_revisions_that_answer_in_one_pool_each_are_none() -> None:
    found = _check(CROSSED)
    assert (found.status, found.reason) == ("False", "RollingOut")
    assert "prefill and decode cannot work together (pageSizeTokens: 32 and 16)" in found.message
    assert "the others are starting" in found.message


def test_what_cannot_be_told_is_no_reason() -> None:
    assert _check({PREFILL: (0, 0), DECODE: (1, 0)}) == PAIRED, "told of the pool itself"
    assert _check(CROSSED, files=()) == PAIRED
    assert paired([{"spec": {"role": "mixed"}}], (), BEHIND) == PAIRED


@pytest.mark.parametrize(
    ("dtypes", "equal"),
    [
        (("auto", "bfloat16"), True),
        (("bfloat16", "auto"), True),
        (("float32", "bfloat16"), False),
        (("fp8_e4m3", "fp8_e4m3"), True),
        (("auto", "fp8_e4m3"), False),
        (("fp8_e4m3", "auto"), False),
        (("bfloat16", "fp8_e4m3"), False),
    ],
)
def test_auto_may_turn_out_to_be_any_type_of_a_model(dtypes: tuple[str, str], equal: bool) -> None:
    first, second = (
        KvFingerprint(model="a", page_size_tokens=16, kv_dtype=each, tensor_parallel_size=1)
        for each in dtypes
    )
    assert could_be_equal(first, second) is equal
    wider = second.model_copy(update={"tensor_parallel_size": 4})
    assert could_be_equal(first, wider) is equal
    assert not could_be_equal(first, second.model_copy(update={"model": "b"}))


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("kvCacheDtype", "fp8_e4m3", "kvDtype: fp8_e4m3 and auto"),
        ("weightDtype", "int8", "weights: int8 and "),
    ],
)
def test_engines_that_hold_numbers_otherwise_are_no_pair(
    setting: str, value: str, told: str
) -> None:
    """They would greet each other in vain."""
    held = _files(APART | {"engine": {setting: value}})
    pools = [_pool(PREFILL, (0, 1)), _pool(DECODE, (1, 0))]
    pools[0]["status"]["revisions"][NEW]["config"] = held[PREFILL]["metadata"]["name"]
    found = paired(pools, (*FORMER.values(), *held.values()), BEHIND)
    assert f"prefill and decode cannot work together ({told}" in found.message


def _status(ready: Ready, change: Manifest) -> Manifest:
    """The status of a service that was edited to have larger pages, with `ready` engines."""
    before = [live(m, uid=m["metadata"]["name"]) for m in written(service_plan(APART))]
    plan = plan_service(service_observed(service(LARGER), before))
    children = [*before, *FILES]
    for pool in plan.pools:
        told = _pool(pool.role, ready[pool.role])["status"]
        children = [c for c in children if c["metadata"]["name"] != f"chat-{pool.role}"]
        children.append(live(pool.manifest, **told))
    assert plan.router is not None
    others = [c for c in children if c["kind"] != "Deployment"]
    there = (*others, complete(plan.router))
    asked = service(LARGER | change)
    observed = service_observed(asked, there, pods=tuple(pods(plan.router)))
    return service_status(observed, plan_service(observed), NOW)


@pytest.mark.parametrize("change", [{}, {"paused": True}])
def test_a_service_whose_pools_cannot_work_together_is_not_ready(change: Manifest) -> None:
    status = _status(CROSSED, change)
    ready, updated = condition(status, "Ready"), condition(status, "Updated")
    assert (ready["status"], ready["reason"]) == ("False", updated["reason"])
    assert "cannot work together" in ready["message"]
    for kind in ("PrefillReady", "DecodeReady"):
        assert condition(status, kind)["status"] == "True"
    whole = _status({PREFILL: (1, 1), DECODE: (1, 0)}, change)
    assert condition(whole, "Ready")["status"] == "True"


@pytest.mark.parametrize(
    ("ready", "status"), [(CROSSED, "False"), ({PREFILL: (1, 0), DECODE: (1, 0)}, "True")]
)
def test_so_is_one_whose_spec_is_refused(ready: Ready, status: str) -> None:
    found = _status(ready, {"slo": {"percentile": 90}})
    assert condition(found, "Ready")["status"] == status
