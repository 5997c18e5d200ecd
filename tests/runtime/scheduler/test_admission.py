"""Budgets, cuts and answers of PrefillAdder."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_runtime.scheduler import admission
from sluice_runtime.scheduler.admission import (
    AdmitResult,
    PrefillAdder,
    PrefillPlan,
    plan_prefill,
)
from sluice_runtime.scheduler.admission_bounds import (
    AdapterSlots,
    PrefillHeadroom,
    PrefixesInFlight,
)
from sluice_runtime.scheduler.pacing import ChunkBudget
from sluice_runtime.scheduler.prefix_cache import Match, PrefixCache
from sluice_runtime.scheduler.prefix_node import key_of
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.request_table import reserved_tokens
from sluice_runtime.wire.messages import Sampling

from tests.runtime.scheduler.building import Bench, request, settings_of


def waiting(prompt: int, max_tokens: int = 1, computed: int = 0, **fields: Any) -> Request:
    tokens = list(range(prompt))
    request = Request(
        f"p{prompt}", tokens, prompt, max_tokens, Sampling(), frozenset(), False, 0.0, **fields
    )
    request.computed_tokens = computed
    return request


def cached(pages: int) -> Match:
    """A prefix that others use, so that locking it costs nothing."""
    return Match("", (), pages, 0, 0)


def evictable(pages: int) -> Match:
    """A prefix that nobody uses."""
    tree = PrefixCache(16)
    key = key_of(range(16 * pages))
    lock = tree.lock(tree.match("", key, pages))
    tree.extend(lock, key, list(range(pages)))
    tree.unlock(lock)
    return tree.match("", key, pages)


def headroom(**changed: Any) -> PrefillHeadroom:
    values: dict[str, Any] = {
        "available_pages": 1000,
        "reserved_tokens": 0.0,
        "decode_rows": 0,
        "rows": 100,
        "alone": False,
    }
    return PrefillHeadroom(**(values | changed))


def plan(
    requests: list[Request],
    continuing: Request | None = None,
    ratio: float = 0.5,
    beginning_weight: float = 1.0,
    **changed: Any,
) -> PrefillPlan:
    of_headroom = {
        k: changed.pop(k) for k in list(changed) if k in PrefillHeadroom.__dataclass_fields__
    }
    settings = settings_of(page_size=16, **changed)
    budget = ChunkBudget(settings.chunk_size, "Fixed", "", beginning_weight)
    adder = PrefillAdder(settings, headroom(**of_headroom), ratio, budget)
    prefixes = PrefixesInFlight(settings, [])
    adapters = AdapterSlots(settings.max_adapters, (), 0.0)
    return plan_prefill(adder, continuing, requests, lambda _: cached(0), prefixes, adapters)


def taken(made: PrefillPlan) -> list[tuple[int, int, bool]]:
    return [(item.start, item.end, item.cut) for item in made.items]


def test_whole_prompts_share_a_step_and_one_is_cut() -> None:
    made = plan([waiting(20), waiting(30), waiting(50), waiting(60)], chunk_size=100)
    # 100 - 50 = 50 left for the third: whole; the fourth finds nothing.
    assert taken(made) == [(0, 20, False), (0, 30, False), (0, 50, False)]
    assert made.reason == AdmitResult.OTHER.value


def test_a_cut_lies_on_an_absolute_page_boundary() -> None:
    made = plan([waiting(20), waiting(90)], chunk_size=64)
    # 44 tokens are left; the prompt starts at 0, so it is cut at 32.
    assert taken(made) == [(0, 20, False), (0, 32, True)]


def test_a_prompt_that_begins_inside_a_page_is_cut_at_the_pages_end() -> None:
    made = plan([], continuing=waiting(100, computed=20), chunk_size=32)
    assert taken(made) == [(20, 48, True)]


def test_no_token_of_a_page_fits() -> None:
    made = plan([waiting(25), waiting(90)], chunk_size=32)
    assert taken(made) == [(0, 25, False)]
    assert made.reason == AdmitResult.OTHER.value


def test_one_request_at_most_is_cut() -> None:
    made = plan([waiting(33), waiting(40), waiting(50)], chunk_size=80)
    assert taken(made) == [(0, 33, False), (0, 40, False)]
    made = plan([waiting(50)], continuing=waiting(200, computed=64), chunk_size=48)
    assert taken(made) == [(64, 112, True)]


def test_a_continuing_chunk_goes_first_and_may_end() -> None:
    made = plan([waiting(20)], continuing=waiting(80, computed=64), chunk_size=48)
    assert taken(made) == [(64, 80, False), (0, 20, False)]


def test_a_continuing_chunk_needs_no_page_of_the_pool() -> None:
    made = plan(
        [waiting(20)], continuing=waiting(80, computed=64), chunk_size=48, available_pages=0
    )
    assert taken(made) == [(64, 80, False)]
    assert made.reason == AdmitResult.NO_TOKEN.value


@pytest.mark.parametrize(("rows", "share"), [(0, 48), (16, 32), (40, 16), (48, 16), (256, 16)])
def test_decode_rows_take_from_the_chunk_but_for_the_minimum_share(rows: int, share: int) -> None:
    made = plan([waiting(500)], chunk_size=48, min_prefill_tokens=16, decode_rows=rows)
    assert taken(made) == [(0, share, True)]


def test_max_prefill_tokens_bounds_a_step_without_chunking() -> None:
    made = plan([waiting(90), waiting(20)], chunk_size=None, max_prefill_tokens=100)
    assert taken(made) == [(0, 90, False)]
    made = plan([waiting(300), waiting(20)], chunk_size=None, max_prefill_tokens=100)
    assert taken(made) == [(0, 300, False)], "the first prompt may exceed it"


@pytest.mark.parametrize(("available_pages", "admitted"), [(8, 0), (9, 1)])
def test_admission_is_strictly_below_what_is_left(available_pages: int, admitted: int) -> None:
    """32 extend + 80 answer + 16 page = 128 < free tokens."""
    made = plan([waiting(32, 80)], available_pages=available_pages, chunk_size=512)
    assert len(made.items) == admitted
    assert (made.reason == AdmitResult.NO_TOKEN.value) == (not admitted)


def test_what_running_requests_will_need_is_left_alone() -> None:
    assert len(plan([waiting(32, 80)], available_pages=20, reserved_tokens=191.0).items) == 1
    assert len(plan([waiting(32, 80)], available_pages=20, reserved_tokens=192.0).items) == 0


def test_an_admitted_request_is_charged_with_pages_and_expected_answer() -> None:
    """First: 1 page + 1 page + 0.5 x 64 = 64 tokens; second wants 1 + 64 + 16 = 81 < 146 - 64."""
    pair = [waiting(1, 64), waiting(1, 64)]
    assert len(plan(pair, available_pages=10, reserved_tokens=14.0).items) == 2
    assert len(plan(pair, available_pages=10, reserved_tokens=15.0).items) == 1


def test_a_cut_prompt_is_charged_with_all_its_pages() -> None:
    adder = PrefillAdder(
        settings_of(page_size=16, chunk_size=32), headroom(available_pages=20), 1.0
    )
    assert adder.add(waiting(256, 1), cached(0)) is AdmitResult.CONTINUE
    assert adder.add(waiting(70, 1), cached(0)) is not AdmitResult.CONTINUE


def test_alone_a_request_is_admitted_if_its_prompt_fits() -> None:
    assert len(plan([waiting(64, 5000)], available_pages=4, alone=True).items) == 1
    assert len(plan([waiting(64, 5000)], available_pages=4, alone=False).items) == 0


@pytest.mark.parametrize(("available_pages", "admitted"), [(6, False), (7, True)])
def test_a_prefix_that_it_locks_is_no_room_for_the_rest(
    available_pages: int, admitted: bool
) -> None:
    """4 of the 7 pages of its prompt are cached and evictable: also alone it must find 3 more."""
    settings = settings_of(page_size=16, chunk_size=512)
    adder = PrefillAdder(settings, headroom(available_pages=available_pages, alone=True), 1.0)
    assert (adder.add(waiting(112), evictable(4)) is AdmitResult.CONTINUE) == admitted


@pytest.mark.parametrize(("available_pages", "admitted"), [(8, False), (9, True)])
def test_a_prefix_that_it_locks_is_no_room_for_an_answer(
    available_pages: int, admitted: bool
) -> None:
    """16 extend + 40 answer + 16 page = 72 < free tokens, less the 64 that are cached."""
    settings = settings_of(page_size=16, chunk_size=512)
    adder = PrefillAdder(settings, headroom(available_pages=available_pages), 1.0)
    assert (adder.add(waiting(80, 40), evictable(4)) is AdmitResult.CONTINUE) == admitted


@pytest.fixture
def few_joined_pages(monkeypatch: pytest.MonkeyPatch) -> PrefillAdder:
    """A step over ten cached pages at most, for requests that join it."""
    monkeypatch.setattr(admission, "JOINED_PAGES", 10)
    settings = settings_of(page_size=16, chunk_size=4096)
    return PrefillAdder(settings, headroom(), 1.0)


def test_one_request_joins_over_a_prefix_of_any_length_and_others_without_one(
    few_joined_pages: PrefillAdder,
) -> None:
    joined = [few_joined_pages.add(waiting(400), cached(pages)) for pages in (20, 0, 1, 0)]
    refused = AdmitResult.OTHER
    assert joined == [AdmitResult.CONTINUE, AdmitResult.CONTINUE, refused, AdmitResult.CONTINUE]


def test_neither_a_cut_prompt_nor_one_whose_pages_return_takes_pages_of_those_that_join(
    few_joined_pages: PrefillAdder,
) -> None:
    few_joined_pages.make_way(waiting(8, computed=4))
    few_joined_pages.add_returning(waiting(400), cached(20), 0)
    assert few_joined_pages.add(waiting(400), cached(20)) is AdmitResult.CONTINUE


def test_no_row_is_left() -> None:
    made = plan([waiting(5), waiting(5)], rows=1)
    assert len(made.items) == 1
    assert made.reason == AdmitResult.OTHER.value


def test_reserved_tokens_are_clipped_and_whole_without_eos() -> None:
    assert reserved_tokens([waiting(5, 100)], 0.25) == 25
    assert reserved_tokens([waiting(5, 100_000)], 0.25) == 1024
    free_to_end = waiting(5, 100)
    free_to_end.ignore_eos = True
    assert reserved_tokens([free_to_end], 0.25) == 100


def test_what_a_cut_leaves_of_the_budget_is_not_cut_again() -> None:
    """18 tokens are left after the first cut, enough for a page of the second."""
    made = plan([waiting(60)], continuing=waiting(90, computed=62), chunk_size=20)
    assert taken(made) == [(62, 80, True)]


def test_pages_that_running_rows_open_now_are_not_given_to_a_prompt() -> None:
    bench = Bench(settings_of(pool_tokens=52, conservativeness=0.05, chunk_size=64))
    bench.add(*(request(f"r{index}", 4, 8) for index in range(5)))
    first = bench.step()
    assert first
    assert len(first.added_rows) == 5
    bench.add(request("late", 16, 1))
    second = bench.step()
    assert second
    assert len(second.appended_pages) == 5, "each row opens a page; the prompt waits"
    bench.run()
    assert "late" in bench.answers
