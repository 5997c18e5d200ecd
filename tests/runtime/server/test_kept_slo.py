"""Requests are counted against the slo once: when they are late, or when their answers end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.config.engine import SloTargets, parse_engine_config
from sluice_contract.wire.load import SloCounts
from sluice_runtime.server.metrics import EngineMetrics, KeptSlo
from sluice_runtime.server.process import _kept_slo
from sluice_runtime.wire.messages import FinishReason, Generate, Sampling, StepResult, TokenDelta

from tests.runtime.server.conftest import MODEL, running_server
from tests.runtime.server.fake_engine import load

BOTH = SloTargets(ttft_milliseconds=500, itl_milliseconds=50)
ARRIVAL = 100.0


def counted(slo: SloTargets, times: Sequence[float], reason: FinishReason) -> tuple[int, int]:
    """Answers, and those in time: of one whose tokens come at `times` after its arrival, the last
    of which is that of its end."""
    kept = KeptSlo(slo)
    metrics = EngineMetrics(kept)
    metrics.opened(Generate("a", [1, 2], 8, Sampling(), arrival_seconds=ARRIVAL))
    *before, end = times
    for seconds in before:
        metrics.stepped(_step(TokenDelta("a", (7,)), seconds))
    metrics.stepped(_step(TokenDelta("a", (7,) if reason == "stop" else (), reason), end))
    return kept.requests, kept.in_time


def _step(delta: TokenDelta, seconds: float) -> StepResult:
    return StepResult(1, "DECODE", ARRIVAL + seconds, 0.01, 0.001, [delta], load(1))


@pytest.mark.parametrize(
    ("times", "reason", "slo", "counts"),
    [
        ((0.4, 0.44, 0.49), "stop", BOTH, (1, 1)),
        ((0.6, 0.64, 0.69), "stop", BOTH, (1, 0)),
        ((0.4, 0.44, 0.59), "stop", BOTH, (1, 0)),
        ((0.4, 0.41, 0.49), "stop", BOTH, (1, 1)),  # the mean, not each gap
        ((0.4, 0.4, 0.4, 0.5, 0.5, 0.5), "stop", BOTH, (1, 0)),  # kept drafts shorten no step
        ((0.4,), "stop", BOTH, (1, 1)),
        ((0.4, 9.0), "stop", SloTargets(ttft_milliseconds=500), (1, 1)),
        ((9.0, 9.04), "stop", SloTargets(itl_milliseconds=50), (1, 1)),
        ((0.3,), "abort", BOTH, (0, 0)),  # its reader left before it could be late
        ((0.6,), "abort", BOTH, (1, 0)),
        ((0.4, 0.6, 0.61), "abort", BOTH, (1, 0)),
        ((0.3,), "error", BOTH, (0, 0)),  # another engine may take it
        ((0.6,), "error", BOTH, (1, 0)),
        ((0.4, 0.6, 0.61), "error", BOTH, (0, 0)),
    ],
)
def test_an_answer_is_in_time_late_or_not_counted(
    times: Sequence[float], reason: FinishReason, slo: SloTargets, counts: tuple[int, int]
) -> None:
    assert counted(slo, times, reason) == counts


def test_a_request_is_missed_from_the_moment_on_at_which_its_first_token_is_late() -> None:
    metrics = EngineMetrics(KeptSlo(BOTH))
    assert EngineMetrics().slo_counts(ARRIVAL) is None
    for name in ("a", "b", "c"):
        metrics.opened(Generate(name, [1, 2], 8, Sampling(), arrival_seconds=ARRIVAL))
    metrics.stepped(_step(TokenDelta("a", (7,)), 0.4))
    assert metrics.slo_counts(ARRIVAL + 0.5) == SloCounts(0, 0, 0)
    assert metrics.slo_counts(ARRIVAL + 0.51) == SloCounts(2, 0, 2)
    assert metrics.slo_counts(ARRIVAL + 300.0) == SloCounts(2, 0, 2)
    metrics.stepped(_step(TokenDelta("b", (7,)), 300.1))
    assert metrics.slo_counts(ARRIVAL + 300.1) == SloCounts(2, 0, 1)
    metrics.stepped(_step(TokenDelta("c", (), "error"), 300.2))  # it was handed back
    metrics.stepped(_step(TokenDelta("b", (7,), "stop"), 300.2))
    assert metrics.slo_counts(ARRIVAL + 300.2) == SloCounts(2, 0, 0)
    metrics.stepped(_step(TokenDelta("a", (), "stop"), 300.2))
    assert metrics.slo_counts(ARRIVAL + 300.2) == SloCounts(3, 1, 0)


def test_a_request_that_was_late_at_another_engine_is_not_counted_here_again() -> None:
    metrics = EngineMetrics(KeptSlo(BOTH))
    for name, waited in (("late", 0.6), ("early", 0.4)):
        asked = Generate(name, [1, 2], 8, Sampling(), arrival_seconds=ARRIVAL, moved=1)
        metrics.opened(msgspec.structs.replace(asked, waited_seconds=waited))
        metrics.stepped(_step(TokenDelta(name, (7,)), 0.7))
        metrics.stepped(_step(TokenDelta(name, (), "stop"), 0.8))
    assert metrics.slo_counts(ARRIVAL + 1.0) == SloCounts(1, 0, 0)


REASONS = st.sampled_from(("stop", "length", "abort", "error"))
LIFE = st.tuples(
    st.integers(0, 30),  # tenths of a second until it comes
    st.lists(st.integers(0, 20), max_size=4),  # between its tokens, in tenths of a second
    st.integers(0, 20),  # from then until its end
    REASONS,
)


@given(
    lives=st.lists(LIFE, max_size=8),
    asked=st.lists(st.integers(0, 150), max_size=12),
    slo=st.sampled_from(
        (BOTH, SloTargets(ttft_milliseconds=900), SloTargets(itl_milliseconds=900))
    ),
)
def test_each_request_counts_once_whenever_the_counts_are_read(
    lives: list[tuple[int, list[int], int, FinishReason]], asked: list[int], slo: SloTargets
) -> None:
    read, unread = EngineMetrics(KeptSlo(slo)), EngineMetrics(KeptSlo(slo))
    before = (0, 0)
    for tenths, event in sorted([*_events(lives), *((at, None) for at in asked)], key=_moment):
        now = ARRIVAL + tenths / 10
        if event is None:
            counts = read.slo_counts(now)
            assert counts is not None
            assert counts.requests >= before[0]
            assert counts.in_time >= before[1]
            assert counts.in_time + counts.late <= counts.requests <= len(lives)
            before = (counts.requests, counts.in_time)
            continue
        for metrics in (read, unread):
            if isinstance(event, Generate):
                metrics.opened(event)
            else:
                metrics.stepped(_step(event, tenths / 10))
    assert read.slo_counts(ARRIVAL + 1000.0) == unread.slo_counts(ARRIVAL + 1000.0)


def _events(
    lives: list[tuple[int, list[int], int, FinishReason]],
) -> Iterator[tuple[int, Generate | TokenDelta]]:
    for number, (begin, gaps, rest, reason) in enumerate(lives):
        name, at = str(number), begin
        yield at, Generate(name, [1], 8, Sampling(), arrival_seconds=ARRIVAL + at / 10)
        for gap in gaps:
            at += gap
            yield at, TokenDelta(name, (7,))
        yield at + rest, TokenDelta(name, (), reason)


def _moment(event: tuple[int, object]) -> int:
    return event[0]


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        ({"slo": {"ttftMilliseconds": 500}}, True),
        (
            {"slo": {"ttftMilliseconds": 500}, "role": "prefill"},
            True,
        ),  # it may become a decode engine
        ({}, False),
    ],
)
def test_engines_that_promise_clients_something_count(
    settings: dict[str, Any], *, counts: bool
) -> None:
    """A prefill engine may become a decode engine."""
    config = parse_engine_config(json.dumps({"model": {"uri": "dummy://qwen3-tiny"}} | settings))
    assert (_kept_slo(config) is not None) is counts


async def test_the_load_report_has_the_counts_where_there_is_an_slo(endpoint: str) -> None:
    async with running_server(endpoint) as server:
        assert not {"slo", "sloTtftSeconds"} & set((await server.http.get("/load")).json())
        kept = server.service.metrics.kept_slo = KeptSlo(BOTH)
        kept.requests, kept.in_time = 9, 7
        report = (await server.http.get("/load")).json()
        assert report["slo"] == {"requests": 9, "inTime": 7, "late": 0}
        assert report["sloTtftSeconds"] == 0.5
        server.service.metrics.kept_slo = KeptSlo(SloTargets(itl_milliseconds=50))
        report = (await server.http.get("/load")).json()
        assert (report["slo"]["requests"], report.get("sloTtftSeconds")) == (0, None)


async def test_an_answer_that_a_stop_string_ends_is_whole(endpoint: str) -> None:
    """The engine only sees that it is aborted."""
    async with running_server(endpoint) as server:
        kept = server.service.metrics.kept_slo = KeptSlo(SloTargets(ttft_milliseconds=60_000))
        server.engine.step_seconds = 0.02
        for stop in (None, "cd"):
            body = {"model": MODEL, "prompt": "abcdefgh", "max_tokens": 9, "stop": stop}
            answer = (await server.http.post("/v1/completions", json=body)).json()
            assert ("cd" in answer["choices"][0]["text"]) is (stop is None)
        async with asyncio.timeout(10):
            while kept.requests < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (kept.requests, kept.in_time) == (2, 2)
