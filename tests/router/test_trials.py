"""Trials of a canary: which attempts count, on which side, and how often."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import FrameType, SimpleNamespace
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.cluster.labels import CanaryShare
from sluice_contract.http_heads import ROUTING_KEY_HEADER
from sluice_contract.wire.load import CanaryCounts, ServiceLoad, SideCounts, TrialCounts
from sluice_router import trials
from sluice_router.canary import CanaryKey, goes_to_new, key_of
from sluice_router.lifecycle import Lifecycle
from sluice_router.trials import MINUTE_SECONDS

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes, test_canary
from tests.router.test_canary import CHAT, MIXED, call, labelled, turns
from tests.router.test_service import slice_of


def session_key(session: str) -> CanaryKey:
    return key_of(call(**{ROUTING_KEY_HEADER: session}))


SHARES = {MIXED: CanaryShare("new", "former", 50)}
NEW_SESSIONS, FORMER_SESSIONS = (
    [s for s in map(str, range(99)) if goes_to_new(SHARES, session_key(s)) is new]
    for new in (True, False)
)
NEW, FORMER = NEW_SESSIONS[0], FORMER_SESSIONS[0]
"""A session of each side, which nothing was asked for yet."""
NONE = SideCounts()


def added(now: SideCounts, before: SideCounts) -> SideCounts:
    """What was counted between two answers."""

    def difference(after: TrialCounts, past: TrialCounts) -> TrialCounts:
        return TrialCounts(
            trials=after.trials - past.trials,
            bad=after.bad - past.bad,
            keys=after.keys - past.keys,
        )

    return SideCounts(
        errors=difference(now.errors, before.errors), late=difference(now.late, before.late)
    )


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 10 * MINUTE_SECONDS

    def __call__(self) -> float:
        return self.now


@dataclass
class Service:
    """A router in front of one engine of each revision, with a clock of the test's."""

    canary: test_canary.Canary
    clock: Clock
    before: tuple[SideCounts, SideCounts] = (SideCounts(), SideCounts())

    @property
    def former(self) -> fakes.FakeEngine:
        return self.canary.engines[0]

    @property
    def new(self) -> fakes.FakeEngine:
        return self.canary.engines[1]

    async def ask(self, session: str, path: str = CHAT) -> int:
        """Status of an answer that is read to its end."""
        async with self.asking(session, path) as answer:
            with suppress(aiohttp.ClientPayloadError):
                await answer.read()
            return answer.status

    @asynccontextmanager
    async def asking(self, session: str, path: str = CHAT) -> AsyncIterator[aiohttp.ClientResponse]:
        headers, body = {ROUTING_KEY_HEADER: session}, json.dumps(turns("hello"))
        url = self.canary.router.url + path
        async with self.canary.client.post(url, data=body, headers=headers) as answer:
            yield answer

    async def counts(self) -> CanaryCounts | None:
        """What `/load` states."""
        async with self.canary.client.get(self.canary.router.metrics_url + "/load") as answer:
            return ServiceLoad.model_validate_json(await answer.read()).canary

    async def closed(self) -> tuple[SideCounts, SideCounts]:
        """Trials of the new and the former revision in this minute, which ends."""
        self.clock.now += MINUTE_SECONDS
        counts = await self.counts()
        assert counts is not None
        before, self.before = self.before, (counts.new_counts, counts.former_counts)
        return added(counts.new_counts, before[0]), added(counts.former_counts, before[1])

    async def reported(self) -> None:
        """Returns once the router has a load report that the new revision made after the call."""
        for _ in range(2):  # the second question follows the first answer
            self.new.polled.clear()
            await self.new.polled.wait()

    async def metric(self) -> dict[tuple[str, str], int]:
        async with self.canary.client.get(self.canary.router.metrics_url + "/metrics") as answer:
            text = await answer.text()
        rows = re.findall(r'canary_trials_total{outcome="(\w+)",side="(\w+)"} (\d+)', text)
        return {(side, outcome): int(count) for outcome, side, count in rows}

    def label(self, label: str) -> None:
        for name, each in zip(("former", "new-1"), self.canary.engines, strict=True):
            self.canary.kube.put(labelled(slice_of(name, each, ready=True), label))

    async def until(self, step: tuple[str, str, int]) -> CanaryCounts:
        """The counts once the router follows these revisions and this percent."""
        for _ in range(int(PATIENCE_SECONDS * 100)):
            counts = await self.counts()
            if counts is not None and (counts.revision, counts.former, counts.percent) == step:
                return counts
            await asyncio.sleep(0.01)
        raise AssertionError(f"{step} never comes")


@asynccontextmanager
async def service(
    monkeypatch: pytest.MonkeyPatch, slo_ttft_seconds: float | None = None
) -> AsyncIterator[Service]:
    clock = Clock()
    monkeypatch.setattr(
        "sluice_router.serve.time", SimpleNamespace(monotonic=clock, time=time.time)
    )
    async with test_canary.canary(monkeypatch, 50) as canary:
        service = Service(canary, clock)
        if slo_ttft_seconds is not None:
            changes = {"slo_ttft_seconds": slo_ttft_seconds}
            service.new.load = service.new.load.model_copy(update=changes)
            await service.reported()
        asked = ((NEW_SESSIONS[-1], service.new), (FORMER_SESSIONS[-1], service.former))
        for session, each in asked:
            await canary.asked_until(session, each.url)
        await service.closed()
        yield service


async def ends_without_done(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    response = await fakes.start_stream(request)
    await response.write(fakes.EVENT % 0)
    return response


def trial(*, failed: bool | None = False, late: bool | None = None) -> SideCounts:
    """The counts of one trial of a key that was not seen before."""
    errors, lateness = (
        TrialCounts() if bad is None else TrialCounts(trials=1, bad=int(bad), keys=1)
        for bad in (failed, late)
    )
    return SideCounts(errors=errors, late=lateness)


GOOD, BAD = trial(), trial(failed=True)
KNOWN = SideCounts(errors=TrialCounts(trials=1))
"""A trial of a key that was seen before."""
ENDINGS: dict[str, tuple[fakes.Behaviour, SideCounts]] = {
    "whole": (fakes.answers_json, GOOD),
    "stream": (fakes.streams, GOOD),
    **{f"{status}": (fakes.refuses(status), BAD) for status in (400, 404, 413, 422)},
    **{f"{status}": (fakes.refuses(status), NONE) for status in (401, 403, 499)},
    "429": (fakes.refuses(429, code="queue_full"), NONE),
    "429 of a tenant": (fakes.refuses(429, code="tenant_full"), NONE),
    "500": (fakes.refuses(500), BAD),
    "502": (fakes.refuses(502), BAD),
    "503 of a dead engine": (fakes.refuses(503, code="engine_died"), BAD),
    "503 without memory": (fakes.refuses(503, code="out_of_memory"), BAD),
    "504": (fakes.refuses(504), BAD),
    "no answer": (fakes.dies_before_answer, BAD),
    "cut": (ends_without_done, BAD),
    "generation_failed": (fakes.ends_with_error(b'{"code":"generation_failed"}'), BAD),
    "too long": (fakes.ends_with_error(b'{"type":"invalid_request_error"}'), BAD),
}
"""Ends of an answer, and the trial of each."""


async def test_an_attempt_counts_by_how_the_engine_ended_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the former revision has answered in its stead, which counts nowhere."""
    async with service(monkeypatch) as running:
        for session, (name, (behave, expected)) in zip(NEW_SESSIONS, ENDINGS.items(), strict=False):
            running.new.behave, asked = behave, len(running.new.calls)
            await running.ask(session)
            assert len(running.new.calls) == asked + 1, name
            assert await running.closed() == (expected, NONE), name
        await running.ask(FORMER)
        assert await running.closed() == (NONE, GOOD)


async def test_requests_of_a_key_are_one_trial_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(monkeypatch) as running:
        for behave in (fakes.answers_json, fakes.refuses(500), fakes.answers_json):
            running.new.behave = behave
            await running.ask(NEW)
            await running.ask(FORMER)
        assert await running.counts() == await running.counts()
        assert await running.closed() == (BAD, GOOD)
        await running.ask(FORMER)
        assert await running.closed() == (NONE, KNOWN)
        assert await running.closed() == (NONE, NONE)


async def test_a_key_that_was_bad_has_no_further_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(monkeypatch) as running:
        for behave in (fakes.refuses(500), fakes.refuses(500), fakes.answers_json):
            running.new.behave = behave
            await running.ask(NEW)
            running.clock.now += MINUTE_SECONDS
        assert await running.closed() == (BAD, NONE)


async def test_a_retry_is_no_trial_of_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(monkeypatch) as running:
        for session, expected in ((FORMER, (NONE, BAD)), (NEW, (BAD, NONE))):
            asked = [len(engine.calls) for engine in running.canary.engines]
            for engine in running.canary.engines:
                engine.behave = fakes.dies_before_answer
            assert await running.ask(session) == HTTPStatus.BAD_GATEWAY
            assert [len(engine.calls) - 1 for engine in running.canary.engines] == asked
            assert await running.closed() == expected


async def test_an_attempt_at_the_other_revision_is_no_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with service(monkeypatch) as running:
        away = labelled(slice_of("former", running.former, ready=False), "new.former.50")
        running.canary.kube.put(away)
        await running.canary.asked_until(FORMER, running.new.url)
        await running.closed()
        await running.ask(FORMER)
        assert await running.closed() == (NONE, NONE)


async def test_counters_state_the_trials_by_side_and_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with service(monkeypatch) as running:
        before = await running.metric()
        running.new.behave = fakes.refuses(500)
        await running.ask(NEW)
        assert await running.metric() == before, "the minute is open"
        running.clock.now += MINUTE_SECONDS
        for _ in range(2):
            after = await running.metric()
            assert after[("new", "failed")] == before[("new", "failed")] + 1
        assert after[("former", "answered")] == before[("former", "answered")]


async def test_counts_begin_at_zero_with_other_revisions_and_with_another_percent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A share that falls back and returns begins anew each time."""
    async with service(monkeypatch) as running:
        epochs = set()
        for step in (("new", "former", 51), ("new", "former", 0), ("former", "new", 50)):
            running.label("{}.{}.{}".format(*step))
            counts = await running.until(step)
            assert (counts.new_counts, counts.former_counts) == (NONE, NONE)
            epochs.add(counts.epoch)
        running.label("new.former.51")
        await running.until(("new", "former", 51))
        await running.ask(NEW)
        running.clock.now += MINUTE_SECONDS
        counts = await running.until(("new", "former", 51))
        assert counts.new_counts == GOOD
        assert len(epochs | {counts.epoch}) == 4
        running.label("former.former.0")
        await running.canary.asked_until(NEW, running.former.url)
        assert await running.counts() is None


@pytest.mark.parametrize(
    ("ttft_seconds", "seconds", "behave", "expected"),
    [
        (None, 25, fakes.hangs, None),
        (None, 26, fakes.hangs, True),
        (None, 26, fakes.hangs_in_stream, None),
        (90, 26, fakes.hangs, None),
        (90, 91, fakes.hangs, True),
        (2, 3, fakes.hangs, None),
    ],
)
async def test_a_client_that_leaves_after_long_without_a_byte_was_not_answered(
    monkeypatch: pytest.MonkeyPatch,
    ttft_seconds: float | None,
    seconds: float,
    behave: fakes.Behaviour,
    expected: bool | None,
) -> None:
    """Else it says nothing of errors. It may have waited too long for the slo though."""
    began = asyncio.Event()

    async def ask() -> None:
        async with running.asking(NEW) as answer:
            began.set()
            await answer.read()

    async with service(monkeypatch, ttft_seconds) as running:
        running.new.behave = behave
        running.new.asked.clear()
        running.new.aborted.clear()
        asking = asyncio.create_task(ask())
        await (began if behave is fakes.hangs_in_stream else running.new.asked).wait()
        running.clock.now += seconds
        asking.cancel()
        await running.new.aborted.wait()
        late = True if ttft_seconds is not None and seconds > ttft_seconds else None
        assert await running.closed() == (trial(failed=expected, late=late), NONE)


@pytest.mark.parametrize("drains", [False, True])
@pytest.mark.parametrize(
    "behave",
    [
        fakes.refuses(503, code="unavailable"),
        fakes.ends_with_error(b'{"code":"unavailable"}'),
    ],
)
async def test_an_engine_that_takes_no_request_fails_unless_it_reports_that_it_drains(
    monkeypatch: pytest.MonkeyPatch, behave: fakes.Behaviour, drains: bool
) -> None:
    async def refuses(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        engine.load = engine.load.model_copy(update={"draining": drains})
        return await behave(engine, request)

    async with service(monkeypatch) as running:
        running.new.behave = refuses
        await running.ask(NEW)
        running.clock.now += 1
        await running.reported()
        assert await running.closed() == (NONE if drains else BAD, NONE)


async def test_a_request_that_takes_too_long_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(monkeypatch) as running:
        monkeypatch.setattr(Lifecycle, "request", _brief(Lifecycle.request))
        behaviours = (fakes.hangs, fakes.hangs_in_stream)
        for session, behave in zip(NEW_SESSIONS, behaviours, strict=False):
            running.new.behave = behave
            await running.ask(session)
            assert await running.closed() == (BAD, NONE)


def _brief(request: Any) -> Any:
    """Requests that may take a hundredth of a second."""

    def brief(lifecycle: Lifecycle) -> Any:
        lifecycle._request_timeout_seconds = 0.01
        return request(lifecycle)

    return brief


@pytest.mark.parametrize(("seconds", "late"), [(0.5, False), (0.6, True)])
async def test_a_first_token_is_late_by_the_slo_of_the_new_revision(
    monkeypatch: pytest.MonkeyPatch, seconds: float, late: bool
) -> None:
    """On both sides; the rest of the answer may take its time."""

    async def slow(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        running.clock.now += seconds
        return await fakes.streams_when_let(engine, request)

    async with service(monkeypatch, slo_ttft_seconds=0.5) as running:
        timed = trial(late=late)
        expected = {NEW: (timed, NONE), FORMER: (NONE, timed)}
        for each, session in ((running.new, NEW), (running.former, FORMER)):
            each.behave = slow
            async with running.asking(session) as answer:
                await answer.content.readany()
                assert await running.closed() == (NONE, NONE), "it ends in the next minute"
                each.gate.set()
                await answer.read()
            assert await running.closed() == expected[session]


async def test_an_answer_that_is_not_streamed_has_no_time_to_first_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with service(monkeypatch, slo_ttft_seconds=0.5) as running:
        await running.ask(NEW)
        assert await running.closed() == (GOOD, NONE)


async def test_what_computes_no_prompt_is_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    async with service(monkeypatch) as running:
        await running.ask(NEW, "/tokenize")
        assert await running.closed() == (NONE, NONE)


async def test_an_event_costs_nothing_and_a_router_without_a_canary_counts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Calls into the module, counted while answers of few and of many events pass."""

    def events(number: int) -> fakes.Behaviour:
        async def behave(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
            response = await fakes.start_stream(request)
            for event in range(number):
                await response.write(fakes.EVENT % event)
                await asyncio.sleep(0)
            await response.write(fakes.DONE)
            return response

        return behave

    calls = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == trials.__file__

    async def calls_of(number: int, url: str) -> int:
        nonlocal calls
        running.new.behave, calls = events(number), 0
        sys.setprofile(count)
        try:
            headers, body = {ROUTING_KEY_HEADER: NEW}, json.dumps(turns("hello"))
            async with client.post(url + CHAT, data=body, headers=headers) as answer:
                assert (await answer.read()).count(b"data:") == number + 1
        finally:
            sys.setprofile(None)
        return calls

    async with service(monkeypatch) as running, aiohttp.ClientSession() as client:
        few = await calls_of(2, running.canary.router.url)
        assert few > 0
        assert await calls_of(40, running.canary.router.url) == few
        async with fakes.running_router(running.new.url) as plain:
            assert await calls_of(2, plain.url) == 0
