"""Two pools under a budget that is too small for both: who gives engines to whom."""

from __future__ import annotations

import random
from typing import Any

import pytest
from sluice_autoscaler.budget import Claim
from sluice_autoscaler.trade import fair_split
from sluice_contract.cluster.labels import Role

from tests.autoscaler.building import DECODE, PREFILL, RATE, Service, wanting

BUDGET = 8
Loads = dict[Role, dict[str, Any]]


def split_between(prefill: int, decode: int, **settings: Any) -> Service:
    wanted = wanting(PREFILL, DECODE, maximum=7, gpu_budget=BUDGET, ttft_seconds=2.0, **settings)
    return Service(wanted, {PREFILL: prefill, DECODE: decode})


def prompts(engines: float, waiting_seconds: float = 0.0) -> dict[str, Any]:
    """Prompts that keep so many engines busy, half a second each."""
    queued = {"queued_tokens": int(waiting_seconds * RATE), "queued_requests": 2 * waiting_seconds}
    return {"prompt_tokens": engines * RATE} | {key: int(n) for key, n in queued.items()}


def looked(service: Service, load: Loads, seconds: float) -> list[dict[Role, int]]:
    """The split after each look."""
    found = []
    for _ in range(int(seconds / 2)):
        service.look(load)
        found.append(dict(service.replicas))
    return found


def test_a_pool_that_could_do_with_less_gives_to_one_that_lacks() -> None:
    service = split_between(4, 4)
    heavy: Loads = {PREFILL: prompts(4.5, 20), DECODE: {"kv_used": 1.2, "running_requests": 20}}
    assert looked(service, heavy, 50)[-1] == {PREFILL: 6, DECODE: 2}, (
        "before a pool shrinks by itself"
    )
    answers: Loads = {PREFILL: prompts(0.5), DECODE: {"kv_used": 4.5, "running_requests": 200}}
    assert looked(service, answers, 240)[-1] == {PREFILL: 1, DECODE: 6}


@pytest.mark.parametrize(
    ("gpus", "desired", "fair"),
    [((1, 1), (9, 9), (3, 5)), ((1, 1), (2, 9), (2, 6)), ((2, 1), (9, 9), (2, 4))],
)
def test_where_both_lack_each_has_about_the_same_share_of_its_need(
    gpus: tuple[int, int], desired: tuple[int, int], fair: tuple[int, int]
) -> None:
    claims = {
        role: Claim(4, most, minimum=1, gpus=each, surplus=0, unplaced=0, wanted=most)
        for role, each, most in zip((PREFILL, DECODE), gpus, desired, strict=True)
    }
    found = fair_split(claims, {PREFILL: 5.8, DECODE: 9.0}, BUDGET)
    assert found == dict(zip((PREFILL, DECODE), fair, strict=True))


def test_decode_engines_full_of_requests_that_wait_for_prompts_are_no_need_of_decode() -> None:
    """Else a backlog of prompts, which holds pages, takes from prefill what would end it."""
    service = split_between(4, 4)
    pending = {"transfer_requests": 90, "prealloc_requests": 200, "queued_requests": 200}
    load: Loads = {
        PREFILL: prompts(3.8, 80),
        DECODE: {"kv_used": 4.0, "running_requests": 100} | pending,
    }
    assert looked(service, load, 120)[-1][PREFILL] >= 6


def test_one_change_is_not_undone_by_noise() -> None:
    service, draw = split_between(5, 3), random.Random(0)
    splits = set()
    for _ in range(300):
        noise = draw.uniform(0.8, 1.2)
        load: Loads = {
            PREFILL: prompts(4.4 * noise, 6 * noise),
            DECODE: {"kv_used": 2.6 / noise, "running_requests": 60},
        }
        service.look(load)
        splits.add((service.replicas[PREFILL], service.replicas[DECODE]))
    assert len(splits) == 1


@pytest.mark.parametrize("why", ["minimum", "not known"])
def test_nothing_is_given_below_the_minimum_or_without_knowledge(why: str) -> None:
    service = split_between(4, 4, minimum=4 if why == "minimum" else 1)
    load: Loads = {PREFILL: prompts(4.5, 20), DECODE: {"kv_used": 1.2, "running_requests": 20}}
    if why == "not known":
        load[DECODE]["age_seconds"] = 99.0
    assert all(split[DECODE] == 4 for split in looked(service, load, 120))


def test_the_decision_says_who_gives_way() -> None:
    service = split_between(4, 4)
    load: Loads = {PREFILL: prompts(4.5, 20), DECODE: {"kv_used": 1.2, "running_requests": 20}}
    for _ in range(60):
        decision = service.look(load).pools[DECODE]
        if decision.desired < decision.current:
            break
    assert decision.reason == "GivesWay"
    assert "8 GPUs are all that the service may hold" in decision.message
    assert "prefill lacks them more" in decision.message
