"""Limits, pages, queue, ratio and policies, each by itself."""

from __future__ import annotations

import typing

import pytest
from sluice_contract.config.engine import SchedulingPolicy
from sluice_runtime.scheduler.limits import Limits, fits_empty_pool, max_new_tokens, refusal
from sluice_runtime.scheduler.new_token_ratio import NewTokenRatio
from sluice_runtime.scheduler.pages import PageAllocator, pages_for
from sluice_runtime.scheduler.policies import POLICIES
from sluice_runtime.scheduler.request import Request, request_from
from sluice_runtime.scheduler.request_table import RequestTable, WaitingQueue

from tests.runtime.scheduler.building import request


@pytest.mark.parametrize("prompt", [1, 62, 63, 64, 99, 100, 200])
@pytest.mark.parametrize("limits", [Limits(100, 64), Limits(64, 100)])
def test_refusal_and_admission_are_one_formula(limits: Limits, prompt: int) -> None:
    assert (refusal(limits, prompt) is None) == fits_empty_pool(limits, prompt)
    assert (max_new_tokens(limits, prompt) >= 1) == fits_empty_pool(limits, prompt)


def test_a_refusal_says_the_numbers() -> None:
    assert "200 tokens" in (refusal(Limits(100, 64), 200) or "")
    assert "context length of 100" in (refusal(Limits(100, 64), 200) or "")
    assert "KV pool of 64" in (refusal(Limits(100, 64), 64) or "")


def test_pages_are_handed_out_in_order_and_never_twice() -> None:
    allocator = PageAllocator(4, [2, 0, 3, 1])
    assert allocator.allocate(3) == [2, 0, 3]
    allocator.free([0])
    assert allocator.allocate(2) == [0, 1]
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free([0, 0])


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens, 16) == pages


def test_retracted_requests_wait_in_front() -> None:
    queue = WaitingQueue()
    first, second, back = (request_from(request(n, 5, 1), 1) for n in ("a", "b", "c"))
    queue.append(first)
    queue.append(second)
    queue.push_front(back)
    assert [waiting.request_id for waiting in queue] == ["c", "a", "b"]
    queue.remove(first)
    assert (len(queue), queue.tokens) == (2, 10)


def test_of_one_that_was_sent_back_only_what_is_computed_anew_has_landed() -> None:
    table, requeued = RequestTable(4), request_from(request("a", 8, 10), 10)
    table.add(requeued)
    table.waiting.remove(requeued)
    table.prefill(requeued, 8, cut=False)
    requeued.token_ids += [1, 2, 3]
    assert requeued.landed_tokens == 10
    requeued.computed_tokens = 0  # as where it gave back what it held
    table.requeue(requeued, 0.0)
    requeued.prefilled_tokens = 4
    assert requeued.landed_tokens == 4


def test_the_ratio_falls_to_what_was_learnt_and_not_below_the_floor() -> None:
    ratio = NewTokenRatio(1.0)
    assert ratio.value == 0.7
    for _ in range(100):
        ratio.learn(10, 100)
    for _ in range(2000):
        ratio.decay()
    assert ratio.value == pytest.approx(0.7 * 0.14)
    for _ in range(100):
        ratio.learn(90, 100)
    for _ in range(2000):
        ratio.decay()
    assert ratio.value == pytest.approx(0.7 * 0.9)
    ratio.reset()
    assert ratio.value == 0.7


def answering(output: int, most: int) -> Request:
    made = request_from(request("a", 5, most), most)
    made.token_ids += [0] * output
    return made


def test_the_ratio_rises_after_a_retraction_and_stays_at_most_one() -> None:
    ratio = NewTokenRatio(0.1)
    ratio.raise_after_retraction([answering(20, 99), answering(40, 100)])
    assert ratio.value == pytest.approx(0.5)
    ratio.raise_after_retraction([answering(600, 199)])
    assert ratio.value == 1.0


def test_learning_remembers_the_last_hundred() -> None:
    ratio = NewTokenRatio(1.0)
    assert ratio.beta == 0.5
    for _ in range(100):
        ratio.learn(100, 100)
    for _ in range(50):
        ratio.learn(0, 100)
    assert ratio.beta == pytest.approx(0.5)


def test_every_policy_has_a_name_that_a_configuration_may_use() -> None:
    assert POLICIES.keys() <= set(typing.get_args(SchedulingPolicy))
