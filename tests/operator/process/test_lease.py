"""Leadership: who may write, and from when to when. Two replicas, one Lease, one fake clock; and
a main loop that is held up while a thread holds the Lease.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from sluice_operator.clock import SystemClock
from sluice_operator.kube.errors import ConflictError, LeaseLostError, UnavailableError
from sluice_operator.kube.kinds import Kind, Manifest
from sluice_operator.process.lease import Heartbeat, Leadership, LeaseName, LeaseTiming
from sluice_operator.process.tasks import ThreadRun

from tests.operator.virtual_time import FakeClock
from tests.patience import PATIENCE_SECONDS


class Leases:
    """An API server with one Lease."""

    def __init__(self) -> None:
        self.slow: Callable[[], None] = lambda: None
        """Called before a write is carried out."""
        self.stored: Manifest | None = None
        self.away = False
        self.hangs = False
        self.version = 0

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        self._answer()
        return copy.deepcopy(self.stored)

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        self._answer()
        self.slow()
        if self.stored is not None:
            raise ConflictError("POST", 409, "AlreadyExists", "")
        return self._store(manifest)

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest:
        self._answer()
        if self.hangs:
            await asyncio.Event().wait()
        self.slow()
        assert self.stored is not None
        sent, current = manifest["metadata"], self.stored["metadata"]
        if sent["resourceVersion"] != current["resourceVersion"]:
            raise ConflictError("PUT", 409, "Conflict", "")
        return self._store(manifest)

    @property
    def holder(self) -> str | None:
        return None if self.stored is None else self.stored["spec"]["holderIdentity"]

    def _answer(self) -> None:
        if self.away:
            raise UnavailableError("any", "away")

    def _store(self, manifest: Manifest) -> Manifest:
        self.version += 1
        self.stored = copy.deepcopy(manifest)
        self.stored["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.stored)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def leases() -> Leases:
    return Leases()


class Steady(Heartbeat):
    """A main loop that nothing holds up."""

    is_recent = True


def replica(
    leases: Leases, clock: FakeClock, identity: str, heartbeat: Heartbeat | None = None
) -> Leadership:
    name = LeaseName("sluice-system", "sluice-operator", identity)
    steady = Steady(clock, 15)
    return Leadership(leases, name, LeaseTiming(duration=15), heartbeat or steady, clock)


async def test_the_first_takes_it_and_the_second_waits(leases: Leases, clock: FakeClock) -> None:
    assert await replica(leases, clock, "a").try_acquire()
    assert not await replica(leases, clock, "b").try_acquire()
    assert leases.holder == "a"


async def test_a_silent_holder_is_replaced_after_its_time_and_not_before(
    leases: Leases, clock: FakeClock
) -> None:
    await replica(leases, clock, "a").try_acquire()
    standby = replica(leases, clock, "b")
    assert not await standby.try_acquire()
    clock.elapsed_seconds += 14.9
    assert not await standby.try_acquire()
    clock.elapsed_seconds += 0.1
    assert await standby.try_acquire()
    assert leases.stored is not None
    assert leases.stored["spec"]["leaseTransitions"] == 1


async def test_a_standby_counts_by_its_own_clock_from_the_last_renewal_it_saw(
    leases: Leases, clock: FakeClock
) -> None:
    holder, standby = replica(leases, clock, "a"), replica(leases, clock, "b")
    await holder.try_acquire()
    for _ in range(10):
        assert not await standby.try_acquire()
        clock.elapsed_seconds += 10
        await holder.try_acquire()
    assert leases.holder == "a"


async def test_a_restarted_holder_leads_again_at_once(leases: Leases, clock: FakeClock) -> None:
    await replica(leases, clock, "a").try_acquire()
    assert await replica(leases, clock, "a").try_acquire()


async def test_a_released_lease_is_free(leases: Leases, clock: FakeClock) -> None:
    holder = replica(leases, clock, "a")
    await holder.acquire()
    await holder.release()
    assert leases.holder == ""
    assert await replica(leases, clock, "b").try_acquire()


async def test_a_standby_outlives_an_outage(leases: Leases, clock: FakeClock) -> None:
    leases.away = True

    def come_back() -> None:
        leases.away = clock.elapsed_seconds < 60

    clock.on_sleep = come_back
    await replica(leases, clock, "a").acquire()
    assert leases.holder == "a"


async def test_a_holder_that_cannot_renew_gives_up_before_another_may_start(
    leases: Leases, clock: FakeClock
) -> None:
    holder = replica(leases, clock, "a")
    await holder.acquire()
    leases.away = True
    with pytest.raises(LeaseLostError, match="could not renew"):
        await holder.hold()
    assert clock.elapsed_seconds < 15


async def test_a_short_outage_costs_nothing(leases: Leases, clock: FakeClock) -> None:
    holder = replica(leases, clock, "a")
    await holder.acquire()

    def outage() -> None:
        leases.away = 20 < clock.elapsed_seconds < 26
        if clock.elapsed_seconds > 120:
            leases.stored = {"metadata": {"resourceVersion": "other"}, "spec": {}}

    clock.on_sleep = outage
    with pytest.raises(LeaseLostError, match="held by None"):
        await holder.hold()
    assert clock.elapsed_seconds > 120


async def test_a_holder_that_was_replaced_stops_at_once(leases: Leases, clock: FakeClock) -> None:
    others_clock = FakeClock()
    holder, other = replica(leases, clock, "a"), replica(leases, others_clock, "b")
    await holder.acquire()
    await other.try_acquire()
    others_clock.elapsed_seconds += 15
    assert await other.try_acquire()
    with pytest.raises(LeaseLostError, match="held by 'b'"):
        await holder.hold()
    await holder.release()
    assert leases.holder == "b", "what is not held cannot be released"


async def test_an_edited_lease_that_still_names_the_holder_is_kept(
    leases: Leases, clock: FakeClock
) -> None:
    holder = replica(leases, clock, "a")
    await holder.acquire()
    assert leases.stored is not None
    leases.stored["metadata"]["resourceVersion"] = "edited"
    renewals: list[str] = []

    def watch() -> None:
        assert leases.stored is not None
        renewals.append(leases.stored["spec"]["renewTime"])
        leases.away = len(renewals) > 6

    clock.on_sleep = watch
    with pytest.raises(LeaseLostError, match="could not renew"):
        await holder.hold()
    assert len(set(renewals)) > 3


async def test_a_renewal_that_failed_is_tried_again_before_the_time_is_over(
    leases: Leases, clock: FakeClock
) -> None:
    holder = replica(leases, clock, "a")
    await holder.acquire()
    leases.away = True
    attempts: list[float] = []
    clock.on_sleep = lambda: attempts.append(clock.elapsed_seconds)
    with pytest.raises(LeaseLostError):
        await holder.hold()
    assert attempts[0] == 3.0
    assert len(attempts) >= 8
    assert clock.elapsed_seconds == pytest.approx(10)


async def test_a_lease_counts_from_before_the_request_that_acquired_it(
    leases: Leases, clock: FakeClock
) -> None:
    holder = replica(leases, clock, "a")

    def take_nine_seconds() -> None:
        clock.elapsed_seconds += 9
        leases.slow = lambda: None

    leases.slow = take_nine_seconds
    await holder.acquire()
    leases.away = True
    with pytest.raises(LeaseLostError, match="could not renew"):
        await holder.hold()
    assert clock.elapsed_seconds < 15


async def test_one_that_was_acquired_too_late_is_acquired_again_before_anything_is_done(
    leases: Leases, clock: FakeClock
) -> None:
    holder = replica(leases, clock, "a")

    def take_twelve_seconds() -> None:
        clock.elapsed_seconds += 12
        leases.slow = lambda: None

    leases.slow = take_twelve_seconds
    await holder.acquire()
    assert leases.version == 2
    leases.away = True
    with pytest.raises(LeaseLostError, match="could not renew"):
        await holder.hold()
    assert clock.elapsed_seconds > 12 + 8, "it held for as long as the second attempt allows"


async def test_a_renewal_whose_answer_was_lost_keeps_nobody_from_a_release(
    leases: Leases, clock: FakeClock
) -> None:
    holder = replica(leases, clock, "a")
    await holder.acquire()
    assert leases.stored is not None
    leases.stored["metadata"]["resourceVersion"] = "renewed"
    await holder.release()
    assert leases.holder == ""


async def hold_with_a_loop_that_hangs(
    leases: Leases, clock: FakeClock, from_seconds: float, until_seconds: float
) -> tuple[Leadership, list[float]]:
    """Beats every half second, but not in between; when the Lease was renewed, until it is lost or
    a minute is over."""
    heartbeat = Heartbeat(clock, 15)
    holder = replica(leases, clock, "a", heartbeat)
    await holder.acquire()
    renewals: list[float] = []

    def beat() -> None:
        now = clock.elapsed_seconds
        last = min(now, from_seconds) if now < until_seconds else now
        clock.elapsed_seconds = last // 0.5 * 0.5
        heartbeat.beat()
        clock.elapsed_seconds = now
        if now > 60:
            leases.stored = {"metadata": {"resourceVersion": "other"}, "spec": {}}

    leases.slow = lambda: renewals.append(clock.elapsed_seconds)
    clock.on_sleep = beat
    with pytest.raises(LeaseLostError):
        await holder.hold()
    return holder, renewals


@pytest.mark.parametrize("begin", [7.0, 8.9, 9.1, 10.5])
async def test_a_main_loop_that_is_held_up_for_less_than_half_the_lease_misses_no_renewal(
    leases: Leases, clock: FakeClock, begin: float
) -> None:
    _, renewals = await hold_with_a_loop_that_hangs(leases, clock, begin, begin + 7)
    assert renewals == [3.0 * n for n in range(1, 22)]


async def test_a_main_loop_that_is_held_up_for_longer_renews_again_once_it_runs(
    leases: Leases, clock: FakeClock
) -> None:
    _, renewals = await hold_with_a_loop_that_hangs(leases, clock, 9.0, 23.5)
    assert [at for at in renewals if at <= 25] == [3, 6, 9, 12, 15, 24]
    assert clock.elapsed_seconds > 60


async def test_a_main_loop_that_hangs_loses_the_lease_and_writes_nothing_when_it_wakes_up(
    leases: Leases, clock: FakeClock
) -> None:
    holder, renewals = await hold_with_a_loop_that_hangs(leases, clock, 9.0, 600.0)
    assert renewals[-1] == 15
    assert 25 <= clock.elapsed_seconds < 15 + 15, "before another may lead"
    with pytest.raises(LeaseLostError):
        holder.write_seconds()


async def test_a_main_loop_that_wakes_up_before_the_thread_has_noticed_writes_nothing(
    leases: Leases, clock: FakeClock
) -> None:
    holder = replica(leases, clock, "a")
    with pytest.raises(LeaseLostError):
        holder.write_seconds()
    await holder.acquire()
    clock.elapsed_seconds += 10
    with pytest.raises(LeaseLostError):
        holder.write_seconds()


@pytest.mark.parametrize("elapsed_seconds", [0, 3, 9.9])
async def test_a_write_may_last_until_half_a_margin_before_another_may_lead(
    leases: Leases, clock: FakeClock, elapsed_seconds: float
) -> None:
    holder = replica(leases, clock, "a")
    await holder.acquire()
    clock.elapsed_seconds = elapsed_seconds
    assert elapsed_seconds + holder.write_seconds() == pytest.approx(12.5)


async def test_a_main_loop_that_does_not_end_is_over_half_a_margin_before_another_may_lead(
    leases: Leases, clock: FakeClock
) -> None:
    holder, lost_at = replica(leases, clock, "a"), list[float]()

    def go_away() -> None:
        leases.away, clock.on_sleep = True, wake_up_late

    def wake_up_late() -> None:
        clock.elapsed_seconds += 0.25
        clock.on_sleep = lambda: None

    await holder.run(go_away, lambda _: lost_at.append(clock.elapsed_seconds))
    assert lost_at == [pytest.approx(10)]
    assert clock.elapsed_seconds == pytest.approx(12.5), "now its process ends"
    assert leases.holder == "a", "it may still write: nobody is let lead earlier"


async def test_a_main_loop_that_has_ended_after_the_loss_lets_the_next_lead_at_once(
    leases: Leases, clock: FakeClock
) -> None:
    holder = replica(leases, clock, "a")

    def go_away() -> None:
        leases.away = True

    def end(_: BaseException) -> None:
        leases.away = False
        clock.on_sleep = cancel

    def cancel() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await holder.run(go_away, end)
    assert leases.holder == ""


async def test_a_defect_ends_the_process_as_a_loss_does(leases: Leases, clock: FakeClock) -> None:
    leases.stored = {"metadata": {}, "no spec": {}}
    errors: list[BaseException] = []
    await replica(leases, clock, "a").run(lambda: None, errors.append)
    assert [type(error) for error in errors] == [KeyError]
    assert clock.elapsed_seconds == pytest.approx(2.5)


async def test_nothing_is_written_from_when_the_release_begins(
    leases: Leases, clock: FakeClock
) -> None:
    holder, held = replica(leases, clock, "a"), list[bool]()
    await holder.acquire()
    leases.slow = lambda: held.append(holder.is_held)
    await holder.release()
    assert held == [False]
    with pytest.raises(LeaseLostError):
        holder.write_seconds()


async def test_a_release_that_hangs_is_given_up(leases: Leases, clock: FakeClock) -> None:
    name = LeaseName("sluice-system", "sluice-operator", "a")
    holder = Leadership(leases, name, LeaseTiming(duration=1), Steady(clock, 1), clock)
    await holder.acquire()
    leases.hangs = True
    async with asyncio.timeout(PATIENCE_SECONDS):
        await holder.release()
    assert leases.holder == "a"


async def test_a_main_loop_that_hangs_does_not_come_to_lead(
    leases: Leases, clock: FakeClock
) -> None:
    heartbeat = Heartbeat(clock, 15)
    clock.elapsed_seconds = 100

    def wake_up() -> None:
        if clock.elapsed_seconds > 200:
            heartbeat.beat()

    clock.on_sleep = wake_up
    await replica(leases, clock, "a", heartbeat).acquire()
    assert clock.elapsed_seconds > 200


class Hasty(SystemClock):
    """Waits for nothing long."""

    async def sleep(self, seconds: float) -> None:
        await super().sleep(min(seconds, 0.01))


class Signalling(Leases):
    """Shows another thread that the Lease is renewed."""

    def __init__(self) -> None:
        super().__init__()
        self.renewed = threading.Semaphore(0)

    def _store(self, manifest: Manifest) -> Manifest:
        self.renewed.release()
        return super()._store(manifest)


@asynccontextmanager
async def leading(leases: Leases) -> AsyncIterator[asyncio.Queue[BaseException]]:
    """Holds the Lease in a thread, with a clock that never comes to half of it; the errors that
    end this."""
    clock, began, loop = Hasty(), asyncio.Event(), asyncio.get_running_loop()
    errors: asyncio.Queue[BaseException] = asyncio.Queue()

    def on_lost(error: BaseException) -> None:
        loop.call_soon_threadsafe(errors.put_nowait, error)

    name = LeaseName("sluice-system", "sluice-operator", "a")
    long = LeaseTiming(duration=100 * round(PATIENCE_SECONDS))
    leadership = Leadership(leases, name, long, Steady(clock, 1), clock)
    on_leading = partial(loop.call_soon_threadsafe, began.set)
    run = ThreadRun("lease", partial(leadership.run, on_leading, on_lost))
    await asyncio.wait_for(began.wait(), PATIENCE_SECONDS)
    try:
        yield errors
    finally:
        run.cancel()
        await asyncio.wait([run.ended])


async def test_the_lease_is_renewed_while_the_main_loop_is_held_up() -> None:
    leases = Signalling()
    async with leading(leases):
        for _ in range(5):
            assert leases.renewed.acquire(timeout=PATIENCE_SECONDS), "and nothing else runs"
    assert leases.holder == "", "released at the end"


async def test_a_lease_that_another_takes_ends_the_wait_in_the_main_loop() -> None:
    leases = Leases()
    async with leading(leases) as errors:
        leases.stored = {"metadata": {"resourceVersion": "b"}, "spec": {"holderIdentity": "b"}}
        error = await asyncio.wait_for(errors.get(), PATIENCE_SECONDS)
    assert isinstance(error, LeaseLostError)
    assert str(error) == "the lease is held by 'b'"
    assert leases.holder == "b"
