"""The journal of a service's decisions: bounded, and there again after a restart."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from sluice_autoscaler.decision import Decision, PoolDecision
from sluice_autoscaler.history import Tick
from sluice_autoscaler.sample import PoolSample, Sample
from sluice_autoscaler.settings import PoolLimits, ScalingSettings
from sluice_contract.cluster.labels import Role
from sluice_operator.autoscale import journals as journals_module
from sluice_operator.autoscale.journals import (
    JOURNAL_KEY,
    LOOK_SECONDS,
    QUIET_WRITE_SECONDS,
    WRITE_SECONDS,
    Journals,
    journal_lines,
)
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Request, Response
from sluice_operator.kube.kinds import Manifest

from tests.operator.autoscale.world import KEY, World, load, row, scaled_service
from tests.operator.examples import service
from tests.operator.virtual_time import FakeClock

SETTINGS = ScalingSettings({Role.MIXED: PoolLimits(0, 9)})


@dataclass
class Server:
    """Holds one ConfigMap."""

    held: Manifest | None = None
    away: bool = False
    hangs: bool = False
    is_terminating: bool = False
    writes: list[Any] = field(default_factory=list)

    async def send(self, request: Request) -> Response:
        assert request.path.endswith("/configmaps/chat-scaling")
        if self.away:
            return Response(503, {})
        if request.method == "PATCH":
            if self.is_terminating:
                causes = [{"reason": "NamespaceTerminating"}]
                return Response(403, {"details": {"causes": causes}})
            if self.hangs:
                await asyncio.Event().wait()
            self.held = request.body
            self.writes.append(request.body)
        return Response(200, self.held) if self.held else Response(404, {})

    def journals(self, clock: FakeClock) -> Journals:
        return Journals(ApiClient(self, lambda verb, plural: None), clock)

    def times(self) -> list[float]:
        lines = journal_lines(self.held or {})
        return [float(line.partition('"time_seconds":')[2].partition(",")[0]) for line in lines]


def tick(seconds: float, replicas: int = 0) -> Tick:
    """One in which a pool of `replicas` engines is to have none."""
    sample = Sample(seconds, {Role.MIXED: PoolSample(Role.MIXED, replicas, 0)}, ())
    pool = PoolDecision(Role.MIXED, replicas, 0, "Idle", "")
    return Tick(sample, Decision({Role.MIXED: pool}, "Idle", ""))


async def test_what_is_pending_is_added_to_what_is_there_and_goes_with_the_service() -> None:
    server, clock = Server(), FakeClock()
    for seconds in (0.0, 100.0):
        journals = server.journals(clock)
        journals.add(KEY, service(), SETTINGS, tick(seconds))
        journals.add(KEY, service(), SETTINGS, tick(seconds + 40))
        await journals.write(KEY)
    assert server.times() == [0.0, 40.0, 100.0, 140.0]
    assert server.held is not None
    (owner,) = server.held["metadata"]["ownerReferences"]
    assert (owner["kind"], owner.get("controller")) == ("InferenceService", None)
    found = await server.journals(clock).last_ticks(service())
    assert [each.sample.time_seconds for each in found] == [0.0, 40.0, 100.0, 140.0]


async def test_what_cannot_be_written_is_written_later() -> None:
    server, clock = Server(away=True), FakeClock()
    journals = server.journals(clock)
    journals.add(KEY, service(), SETTINGS, tick(0.0))
    await journals.write(KEY)
    journals.add(KEY, service(), SETTINGS, tick(50.0))
    server.away = False
    await journals.write(KEY)
    assert server.times() == [0.0, 50.0]
    server.away = True
    assert await journals.last_ticks(service()) == ()


async def test_a_namespace_that_goes_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    journals = Server(is_terminating=True).journals(FakeClock())
    journals.add(KEY, service(), SETTINGS, tick(0.0))
    await journals.write(KEY)
    assert caplog.records == []


async def test_what_a_cancelled_write_had_taken_is_written_later_and_once() -> None:
    server, clock = Server(hangs=True), FakeClock()
    journals = server.journals(clock)
    journals.add(KEY, service(), SETTINGS, tick(0.0, replicas=1))
    for arrived in (False, True):
        write = asyncio.create_task(journals.write(KEY))
        for _ in range(20):
            await asyncio.sleep(0)
        if arrived:
            there = tick(0.0, replicas=1)
            other = Server()
            others = other.journals(clock)
            others.add(KEY, service(), SETTINGS, there)
            await others.write(KEY)
            server.held = other.held
        write.cancel()
        with pytest.raises(asyncio.CancelledError):
            await write
    server.hangs = False
    journals.add(KEY, service(), SETTINGS, tick(50.0))
    await journals.flush()
    assert server.times() == [0.0, 50.0]
    writes = len(server.writes)
    await journals.flush()
    assert len(server.writes) == writes, "nothing is pending"


async def test_a_flush_ends_though_the_api_server_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(journals_module, "FLUSH_SECONDS", 0.0)
    journals = Server(hangs=True).journals(FakeClock())
    journals.add(KEY, service(), SETTINGS, tick(0.0))
    await journals.flush()


async def test_a_config_map_of_the_name_that_is_not_the_services_is_left_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, clock = Server(), FakeClock()
    before = server.journals(clock)
    before.add(KEY, service(uid="of-a-former-service"), SETTINGS, tick(0.0))
    await before.write(KEY)
    theirs = server.held
    journals = server.journals(clock)
    assert await journals.last_ticks(service()) == ()
    for seconds in (0.0, 40.0):
        journals.add(KEY, service(), SETTINGS, tick(seconds))
        await journals.write(KEY)
    assert server.held == theirs
    assert [each.message for each in caplog.records] == ["journal not kept"]
    server.held = None  # the garbage collector has taken it
    journals.add(KEY, service(), SETTINGS, tick(80.0))
    await journals.write(KEY)
    assert server.times() == [80.0]


async def test_a_journal_that_has_lost_its_owner_is_taken_up_and_owned_again() -> None:
    server, clock = Server(), FakeClock()
    before = server.journals(clock)
    before.add(KEY, service(uid="before-the-restore"), SETTINGS, tick(0.0))
    await before.write(KEY)
    assert server.held is not None
    del server.held["metadata"]["ownerReferences"]
    journals = server.journals(clock)
    assert [each.sample.time_seconds for each in await journals.last_ticks(service())] == [0.0]
    journals.add(KEY, service(), SETTINGS, tick(40.0))
    await journals.write(KEY)
    assert server.times() == [0.0, 40.0]
    (owner,) = server.held["metadata"]["ownerReferences"]
    assert owner["uid"] == service()["metadata"]["uid"]


class OverError(Exception):
    """The test has seen enough."""


async def written_after(first: Tick) -> float:
    """How long until a journal with one line is written."""
    server, clock = Server(), FakeClock()
    journals = server.journals(clock)
    journals.add(KEY, service(), SETTINGS, first)

    def look() -> None:
        if server.writes:
            raise OverError

    clock.on_sleep = look
    with pytest.raises(OverError):
        await journals.run()
    return clock.elapsed_seconds - LOOK_SECONDS


async def test_a_decision_is_written_within_a_minute_and_quiet_within_ten() -> None:
    assert await written_after(tick(0.0, replicas=3)) == WRITE_SECONDS
    assert await written_after(tick(0.0)) == QUIET_WRITE_SECONDS


def test_what_somebody_made_of_the_config_map_is_no_journal() -> None:
    assert journal_lines({}) == []
    assert journal_lines({"binaryData": {JOURNAL_KEY: "####"}}) == []
    assert journal_lines({"binaryData": {JOURNAL_KEY: "aGVsbG8="}}) == []


async def test_the_next_operator_goes_on_with_the_history_of_the_one_before() -> None:
    first = World(scaled_service(), (load(row("a")),))
    await first.tick(times=3)
    second = World(scaled_service(), (load(row("a")),), earlier=tuple(first.noted))
    second.clock.elapsed_seconds = 20.0
    await second.tick()
    ticks = second.scaling_tick.memories[KEY].history.ticks
    times = [tick.sample.time_seconds for tick in ticks]
    assert times[:3] == [tick.sample.time_seconds for tick in first.noted]
    assert [tick.decision for tick in ticks[:3]] == [tick.decision for tick in first.noted]
    assert times[3] == times[0] + 20.0
    third = World(scaled_service(), (load(row("a")),), earlier=tuple(first.noted))
    third.clock.elapsed_seconds = 10_000.0
    await third.tick()
    assert len(third.scaling_tick.memories[KEY].history.ticks) == 1, "too long ago"
