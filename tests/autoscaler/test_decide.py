"""How many engines a pool should have, by what is seen of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sluice_autoscaler.decide import decide
from sluice_autoscaler.history import History, Tick
from sluice_autoscaler.measured import Measured
from sluice_autoscaler.pool_plan import start_message
from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_contract.cluster.labels import Role

from tests.autoscaler.building import (
    DECODE,
    MIXED,
    PREFILL,
    RATE,
    Service,
    engine,
    pool,
    seen,
    wanting,
)  # fmt: skip
from tests.figures import changed

TWO = (PREFILL, DECODE)


def decided(settings: ScalingSettings, *engines: Any, **sample: Any) -> Any:
    return decide(settings, History(), seen(engines, **sample))


def queue(seconds: int, requests: int = 99) -> dict[str, Any]:
    """So much work waits."""
    return {"queued_tokens": int(seconds * RATE), "queued_requests": requests}


@pytest.mark.parametrize(
    ("load", "settings", "desired", "reason"),
    [
        (queue(3), {}, 3, "QueuedWork"),
        (queue(3), {"queue_seconds": 0.75}, 4, "QueuedWork"),
        (queue(10), {"ttft_seconds": 3.0}, 2, "QueuedWork"),  # what is late, in five seconds
        (queue(9, requests=2), {}, 3, "QueuedWork"),  # one engine for each prompt
        (queue(9), {}, 5, "RateLimited"),
        ({"queued_requests": 7}, {"prefill_queue": 2}, 4, "PrefillQueue"),
        ({"kv_used": 0.9}, {}, 2, "KvPages"),
        ({"kv_used": 0.9}, {"kv_used": 0.95}, 1, "Enough"),
        ({"running_requests": 256, "queued_requests": 200}, {}, 2, "RunningRequests"),
        (queue(99), {"pools": {MIXED: PoolLimits(1, 3)}}, 3, "QueuedWork"),
        ({}, {"pools": {MIXED: PoolLimits(4, 9)}}, 4, "AtMinimum"),
    ],
)  # fmt: skip
def test_a_target_that_is_exceeded_asks_for_engines(
    load: dict[str, Any], settings: dict[str, Any], desired: int, reason: str
) -> None:
    decision = decided(replace(wanting(), **settings), engine(**load))
    assert (decision.pools[MIXED].desired, decision.pools[MIXED].reason) == (desired, reason)
    assert decision.message.startswith("mixed: ")


def test_prefill_and_decode_follow_their_own_signals() -> None:
    busy = {"queued_tokens": int(8 * RATE), "queued_requests": 40}
    service = Service(wanting(*TWO), {PREFILL: 2, DECODE: 2})
    service.look({PREFILL: busy, DECODE: {"kv_used": 0.4}})
    assert service.replicas == {PREFILL: 6, DECODE: 2}
    service = Service(wanting(*TWO), {PREFILL: 2, DECODE: 2})
    service.look({PREFILL: {"kv_used": 1.9}, DECODE: {"kv_used": 1.9, "queued_tokens": 0}})
    assert service.replicas == {PREFILL: 2, DECODE: 3}


def test_decode_grows_for_the_time_between_tokens_and_for_requests_without_pages() -> None:
    settings = wanting(DECODE, itl_seconds=0.05, decode_queue=3)
    slow = engine("d", DECODE, running_requests=100, itl_seconds=0.09)
    pools = pool(DECODE, 1)
    found = decide(settings, History(), seen([slow], pools)).pools[DECODE]
    assert (found.desired, found.reason) == (2, "Itl")
    waits = engine("d", DECODE, running_requests=10, prealloc_requests=10)
    found = decide(settings, History(), seen([waits], pools)).pools[DECODE]
    assert (found.desired, found.reason) == (4, "DecodeQueue")


def test_each_waiting_request_counts_for_one_queue_target() -> None:
    """Those that wait for their prompt are in transfer in a decode engine as well: more of those
    would not help. Those that are computed wait for decode to read them."""
    settings = wanting(*TWO, prefill_queue=10, decode_queue=10, queue_seconds=3600.0)
    prompts = {"queued_requests": 40, "bootstrap_requests": 41, "running_requests": 1}
    waiting = engine("p", PREFILL, **prompts), engine("d", DECODE, transfer_requests=41)
    computed = engine("p", PREFILL, inflight_requests=15), engine("d", DECODE, transfer_requests=15)
    full = {"running_requests": 200, "prealloc_requests": 25, "transfer_requests": 0}
    without_pages = engine("p", PREFILL), engine("d", DECODE, **full)
    pools = pool(PREFILL, 1), pool(DECODE, 1)
    found = [decide(settings, History(), seen(engines, *pools)).pools
             for engines in (waiting, computed, without_pages)]  # fmt: skip
    assert [(each[PREFILL].desired, each[DECODE].desired) for each in found] == [
        (4, 1), (1, 2), (1, 3),
    ]  # fmt: skip
    assert found[0][PREFILL].message.startswith("prefill: 40 requests wait for prefill, 10 in each")
    assert found[1][DECODE].message.startswith("decode: 15 requests wait for decode, 10 in each")


def test_arriving_work_asks_for_engines_before_anything_waits() -> None:
    service = Service(wanting(ttft_seconds=2.0), {MIXED: 1})
    sizes = service.settle({MIXED: {"prompt_tokens": 3 * RATE}}, seconds=60)
    assert sizes[-1] >= 4
    more = Service(wanting(ttft_seconds=2.0), {MIXED: 1})
    assert more.settle({MIXED: {"prompt_tokens": 6 * RATE}}, seconds=60)[-1] > sizes[-1]


@pytest.mark.parametrize(
    ("promise", "fewer"),
    [({}, False), ({"itl_seconds": 0.06}, True), ({"itl_seconds": 1.0}, True)],
)
def test_the_marginal_rate_counts_only_where_answers_have_their_part_of_the_time(
    promise: dict[str, Any], *, fewer: bool
) -> None:
    """Without a promised ITL the chunks are fixed, and what steps were seen to take counts."""
    load = {"prompt_tokens": 3 * RATE, "running_requests": 20, "itl_seconds": 0.03}
    sizes = []
    for marginal in (None, 2 * RATE):
        service = Service(wanting(ttft_seconds=2.0, **promise), {MIXED: 1})
        rates = {"marginal_prefill_tokens_per_second": marginal}
        sizes.append(service.settle({MIXED: load | rates}, seconds=200))
    assert (sizes[1][-1] < sizes[0][-1]) is fewer
    assert fewer or sizes[0] == sizes[1]


def test_up_fast_and_down_slow() -> None:
    service = Service(wanting(), {MIXED: 1})
    for _ in range(3):
        service.look({MIXED: {"queued_tokens": int(5 * RATE), "queued_requests": 50}})
    assert service.replicas[MIXED] == 5
    sizes = service.settle({}, seconds=200)
    assert sizes[13] == 5, "for a minute nothing goes"
    assert sizes[-1] == 1
    assert all(later <= size for size, later in pairwise(sizes))


def test_a_pool_that_is_needed_less_and_less_shrinks_once_in_a_while() -> None:
    service = Service(wanting(kv_used=1.0), {MIXED: 16})
    changed = []
    for left in range(200, 0, -1):
        before = service.replicas[MIXED]
        service.look({MIXED: {"kv_used": 15 * left / 200, "running_requests": 1}}, seconds=2.0)
        if service.replicas[MIXED] < before:
            changed.append(service.seconds)
    assert len(changed) > 3
    assert all(later - sooner >= 90 for sooner, later in pairwise(changed))


@pytest.mark.parametrize(("answers_a_second", "engines"), [(1, 4), (8, 3)])
def test_page_use_grows_no_longer_than_an_answer_takes(answers_a_second: int, engines: int) -> None:
    """Then as many answers end as begin: short ones do not fill engines for longer."""
    service = Service(wanting(DECODE, kv_used=1.0), {DECODE: 3})
    for at in range(30):
        used = 2.0 + max(0, at - 15) / 20
        ended = {"finished_requests_total": 100 + answers_a_second * 2 * at}
        service.look({DECODE: {"kv_used": used, "running_requests": 80} | ended})
    assert service.replicas[DECODE] == engines


def test_victims_are_those_with_the_least_work_and_none_that_leaves_already() -> None:
    service = Service(wanting(), {MIXED: 4})
    service.settle({MIXED: {"kv_used": 0.1}}, seconds=80)
    assert service.replicas[MIXED] < 4
    engines = [
        engine("busy", running_requests=9),
        engine("light", running_requests=1),
        engine("sick", condition="failing", running_requests=3),
        engine("odd", running_requests=-5),
        engine("gone", condition="draining"),
    ]
    quiet = History(
        tuple(replace(tick, decision=_kept(tick.decision, 4)) for tick in service.history.ticks)
    )
    found = decide(wanting(), quiet, seen(engines, pool(MIXED, 4), at=service.seconds + 2))
    assert found.pools[MIXED].victims == ("sick", "light")


@pytest.mark.parametrize("state", ["starting", "unschedulable"])
def test_pods_that_are_not_ready_go_before_engines_that_serve(state: str) -> None:
    """Of six, two never come up: the pool gives up three, of which one serves."""
    service = Service(wanting(), {MIXED: 6}, **{state: 2})
    looks = [service.look({}, seconds=4.0).pools[MIXED] for _ in range(60)]
    first, *_, last = [pool for pool in looks if pool.desired < pool.current]
    assert (first.current, first.desired, first.victims) == (6, 3, ("mixed-0",))
    assert (last.desired, len(last.victims)) == (1, last.current - 1)


def _kept(decision: Any, current: int) -> Any:
    pools = {role: replace(each, current=current, desired=current, wanted=1)
             for role, each in decision.pools.items()}  # fmt: skip
    return replace(decision, pools=pools)


def test_every_decision_says_what_was_seen_in_numbers() -> None:
    decision = decided(wanting(), engine(queued_tokens=3 * RATE, queued_requests=9))
    assert decision.reason == "QueuedWork"
    assert decision.message == (
        "mixed: 3.0 s of work wait, 1 s in each engine allowed: 3 engines are wanted: 1 → 3; "
        "an engine is assumed to start in 30 s, until a start was measured"
    )
    steady = decided(wanting(), engine(queued_tokens=RATE, queued_requests=9))
    assert "1 engine is wanted" in steady.message


def test_growth_names_the_start_that_it_is_planned_for() -> None:
    phases = {"image": 20.0, "weights": 7.0}
    starting = pool(MIXED, 1, start_seconds=40.0, start_phases=phases)
    busy, calm = (engine(queued_tokens=work * RATE, queued_requests=9) for work in (3, 1))
    first = decide(wanting(), History(), seen([busy], starting))
    text = "an engine starts in 40.0 s: image 20.0 s, weights 7.0 s, rest 13.0 s"
    assert first.message.endswith(f"1 → 3; {text}")
    assert "starts in" not in decide(wanting(), History(), seen([calm], starting)).message
    grown = start_message(Measured(boot_seconds=60.0), starting)
    assert grown == "an engine starts in 60.0 s: image 20.0 s, weights 7.0 s, rest 33.0 s"


def test_a_queue_that_does_not_move_waits_for_pages() -> None:
    """However little work it is: nothing of it is computed until answers end."""
    before = engine(running_requests=40, queued_requests=20, queued_tokens=2000, kv_used=0.6)
    now = changed(before, queued_requests=30, queued_tokens=3000, prompt_tokens_total=1000)
    moving = changed(now, prompt_tokens_total=5000)
    for sample, desired in ((now, 2), (moving, 1)):
        service = Service(wanting(), {MIXED: 1})
        first = seen([before], at=2.0)
        history = service.history.with_tick(Tick(first, decide(wanting(), History(), first)))
        found = decide(wanting(), history, seen([sample], at=4.0)).pools[MIXED]
        assert (found.wanted, found.reason) == (desired, "KvPages" if desired > 1 else "Enough")


def test_page_use_is_forecast_for_one_start() -> None:
    """Pages fill by 0.5 % of an engine a second: in a start of 30 s, by 15 %."""
    history, starting = History(), pool(MIXED, 1, start_seconds=30.0)
    for at in range(0, 92, 2):
        load = engine(running_requests=20, kv_used=0.2 + 0.005 * at)
        sample = seen([load], starting, at=float(at))
        decision = decide(wanting(), history, sample)
        history = history.with_tick(Tick(sample, decision))
    assert "requests need the pages of 0.80 engines" in decision.message


def test_a_queue_behind_full_rows_waits_for_rows_and_not_for_pages() -> None:
    load: dict[str, Any] = {"max_running_requests": 20, "running_requests": 20, "kv_used": 0.1}
    before = engine(**load, queued_requests=5, queued_tokens=500)
    now = engine(**load, queued_requests=8, queued_tokens=800, prompt_tokens_total=300)
    first = seen([before], at=2.0)
    history = History((Tick(first, decide(wanting(), History(), first)),))
    found = decide(wanting(), history, seen([now], at=4.0)).pools[MIXED]
    assert (found.wanted, found.reason) == (2, "RunningRequests")


@pytest.mark.parametrize("role", [MIXED, DECODE])
def test_rows_that_fill_up_ask_for_engines_before_they_are_full(role: Role) -> None:
    """By a start, and by no more than an answer takes: answers run for ten seconds."""
    service = Service(wanting(role), {role: 1})
    asked_at = 0
    for running in range(4, 60):
        load = {"max_running_requests": 40, "running_requests": running}
        service.look({role: load})
        if service.replicas[role] > 1:
            asked_at = running
            break
    assert 30 <= asked_at <= 34


def test_the_time_that_engines_take_to_start_is_learnt() -> None:
    """A pool whose engines start slowly gives them up slowly."""
    history, ready = History(), 1
    for index in range(40):
        load = queue(3) if index < 30 else {}
        ready = 3 if index == 29 else ready
        sample = seen(
            [engine(**load)], pool(MIXED, 1 if index == 0 else 3, ready=ready), at=4.0 * index
        )
        decision = decide(wanting(), history, sample)
        history = history.with_tick(Tick(sample, decision))
    assert decision.pools[MIXED].measured.boot_seconds == pytest.approx(29 * 4.0)
    assert decision.pools[MIXED].reason == "Stabilising"
    assert "232 s" in decision.message


@pytest.mark.parametrize(("starts", "seconds"), [((70.0,), 140), ((250_000.0, 40.0), 80)])
def test_a_start_is_as_long_as_that_of_the_pods_while_none_was_awaited(
    starts: Sequence[float], seconds: int
) -> None:
    """As they say now."""
    history = History()
    for index in range(160):
        start_seconds = starts[min(index, len(starts) - 1)]
        mixed = replace(pool(MIXED, 3), start_seconds=start_seconds)
        sample = seen([engine(**queue(3) if index < 150 else {})], mixed, at=2.0 * index)
        decision = decide(wanting(maximum=3), history, sample)
        history = history.with_tick(Tick(sample, decision))
    assert f"in the last {seconds} s" in decision.message


def test_a_promise_that_no_number_of_engines_keeps_is_left_alone_once_that_is_seen() -> None:
    service = Service(wanting(DECODE, itl_seconds=0.05, maximum=12), {DECODE: 1})
    sizes = []
    for _ in range(150):
        running = 60 / service.replicas[DECODE]
        load = {"running_requests": 60, "itl_seconds": 0.08 + 0.0001 * running, "kv_used": 0.5}
        service.look({DECODE: load}, seconds=4.0)
        sizes.append(service.replicas[DECODE])
    assert max(sizes) > 1
    assert set(sizes[-30:]) == {1}


@pytest.mark.parametrize(
    ("running", "gap_seconds", "shrinks"),
    [(8, 59.0, True), (8, 61.0, False), (0, 121.0, True), (0, 500.0, False)],
)
def test_a_pool_shrinks_after_a_gap_only_once_its_load_has_been_known_for_as_long_again(
    running: int, gap_seconds: float, *, shrinks: bool
) -> None:
    """While nobody looks, load may have come and gone. A service with nothing to do is looked at
    every two minutes, and need not wait longer for that."""
    service = Service(wanting(), {MIXED: 8})
    for _ in range(29):
        service.look({MIXED: {"running_requests": running}})
        service.replicas = {MIXED: 8}
    service.look({MIXED: {"running_requests": running}}, seconds=gap_seconds)
    assert (service.replicas[MIXED] < 8) == shrinks
    if shrinks:
        return
    last = service.history.last
    assert last is not None
    assert last.decision.pools[MIXED].reason == "Stabilising"
    sizes = [service.look({MIXED: {}}, seconds=4.0).pools[MIXED].desired for _ in range(20)]
    assert sizes[0] == 8 > sizes[-1]


def test_an_idle_time_with_a_gap_in_it_does_not_lead_to_zero() -> None:
    for gap_seconds, least in ((100.0, 0), (400.0, 1)):
        service = Service(wanting(minimum=0), {MIXED: 1})
        for _ in range(60):
            service.look({}, seconds=4.0)
        service.look({}, seconds=gap_seconds)
        assert service.replicas[MIXED] == least


def test_a_service_sleeps_only_when_it_has_been_idle_for_the_whole_time() -> None:
    settings = wanting(minimum=0)
    service = Service(settings, {MIXED: 1})
    service.settle({}, seconds=settings.idle_seconds - 20)
    service.look({MIXED: {"running_requests": 1}}, seconds=4.0)
    assert set(service.settle({}, seconds=settings.idle_seconds - 20)) == {1}
    assert service.settle({}, seconds=120)[-1] == 0
