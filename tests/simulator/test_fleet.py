"""Fleets: what two pools answer is what mixed engines answer, and what going over costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_contract.cluster.labels import Role
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_simulator.costs import cost_named
from sluice_simulator.fleet import FleetReplay, FleetReplayed, Pool
from sluice_simulator.handover import Network
from sluice_simulator.replay import Options
from sluice_simulator.traces.request import Trace, TraceRequest, trace_of
from sluice_simulator.traces.synthetic import Workload, synthesise

COST = cost_named("h200-llama3-8b")
PAGE, TOKEN_BYTES = 16, 131_072
FAST = Network(1e15, 0.0, PAGE * TOKEN_BYTES)
CHATS = Workload("chats", 60, 20.0, (50, 3_000), (1, 60), prefixes=3, prefix_blocks=1)


def settings(pool_tokens: int = 200_000, chunk: int = 2_048) -> SchedulerSettings:
    return SchedulerSettings(
        limits=Limits(131_072, pool_tokens),
        page_size=PAGE,
        chunk_size=chunk,
        max_prefill_tokens=16_384,
        min_prefill_tokens=PAGE,
        max_running_requests=64,
        max_queued_requests=1_000,
        mixed=True,
    )


def two_pools(prefill: int = 1, decode: int = 1, **changed: int) -> list[Pool]:
    of = settings(**changed)
    return [Pool(Role.PREFILL, prefill, COST, of), Pool(Role.DECODE, decode, COST, of)]


def replay(trace: Trace, pools: list[Pool], network: Network = FAST) -> FleetReplayed:
    return FleetReplay(trace, pools, network, Options()).run()


def first_token(replayed: FleetReplayed, number: int = 0) -> float:
    line = replayed.record.timelines[number]
    assert line.first_token_seconds is not None
    return line.first_token_seconds - line.request.arrival_seconds


@pytest.mark.parametrize("pools", [two_pools(2, 2), [Pool(Role.MIXED, 4, COST, settings())]])
def test_every_answer_has_the_length_that_the_trace_says(pools: list[Pool]) -> None:
    trace = synthesise(CHATS, 0)
    lines = replay(trace, pools).record.timelines
    assert [line.tokens for line in lines] == [r.output_tokens for r in trace.requests]
    assert all(line.finished_seconds and line.error is None for line in lines)


def test_a_small_decode_pool_retracts_and_still_answers() -> None:
    trace = trace_of("many", [TraceRequest(0.0, 400, 300) for _ in range(12)])
    lines = replay(trace, two_pools(pool_tokens=4_096)).record.timelines
    assert [line.tokens for line in lines] == [300] * 12


def test_the_last_chunk_goes_over_in_the_open_and_the_others_behind_prefill() -> None:
    prompt, chunk = 8 * 2_048, 2_048
    trace = trace_of("one", [TraceRequest(0.0, prompt, 4)])
    slow = Network(50e9, 0.0, PAGE * TOKEN_BYTES)
    fast, late = replay(trace, two_pools()), replay(trace, two_pools(), slow)
    assert late.hand_overs.read_bytes == prompt * TOKEN_BYTES
    assert late.hand_overs.hidden_bytes == (prompt - chunk) * TOKEN_BYTES
    added = first_token(late) - first_token(fast)
    assert added == pytest.approx(chunk * TOKEN_BYTES / 50e9, rel=1e-3)
    assert late.hand_overs.seconds == [pytest.approx(added, rel=1e-3)]


def test_a_wire_carries_one_read_at_a_time() -> None:
    both = trace_of("two", [TraceRequest(0.0, 1_024, 2), TraceRequest(0.0, 1_024, 2)])
    slow = Network(1e9, 0.0, PAGE * TOKEN_BYTES)
    seconds = replay(both, two_pools(), slow).hand_overs.seconds
    each = 1_024 * TOKEN_BYTES / 1e9
    assert seconds == pytest.approx([each, 2 * each])


def test_a_prefix_that_the_decode_engine_has_does_not_go_over_again() -> None:
    shared = [TraceRequest(10.0 * n, 1_034, 2, (7, 8, 9 + n)) for n in range(2)]
    read = replay(trace_of("again", shared), two_pools()).hand_overs.read_bytes
    assert read == (2 * 1_040 - 1_024) * TOKEN_BYTES


def test_a_prompt_does_not_wait_for_a_step_of_another_to_be_attested() -> None:
    """The second prompt is computed while the first one's pages are read."""
    trace = trace_of("two", [TraceRequest(0.0, 2_048, 2), TraceRequest(0.0, 30_000, 2)])
    pools = two_pools(chunk=30_000)
    pools[0] = replace(pools[0], settings=replace(pools[0].settings, max_prefill_tokens=2_048))
    assert replay(trace, pools).hand_overs.seconds[0] < 0.01


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [replay(synthesise(CHATS, 1), two_pools(2, 2)).record.timelines for _ in range(2)]
    assert runs[0] == runs[1]
