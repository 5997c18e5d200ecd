"""A tick of one service: what is seen leads to what is written and told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from typing import Literal

import pytest
from sluice_autoscaler.decision import Decision, PoolDecision
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import ServiceLoad
from sluice_operator.api.conditions import Check
from sluice_operator.apply.plan import Event
from sluice_operator.autoscale.events import ScalingOutcome, Written, is_news
from sluice_operator.autoscale.tick import TICK_SECONDS
from sluice_operator.kube.errors import UnavailableError
from sluice_operator.scaled import MoveInProgress, PoolPods, ScaledService, Scaling

from tests.operator.autoscale.world import BOTH, KEY, World, load, row, scaled_service
from tests.operator.virtual_time import START

BUSY = {"queued_work_seconds": 5.0, "queued_requests": 9, "queued_tokens": 9000}


async def test_queued_work_grows_the_pool_and_is_told_once() -> None:
    world = World(scaled_service(), (load(row("a", **BUSY)),))
    await world.tick()
    ((role, replicas),) = world.writes
    assert (role, replicas > 1) == (Role.MIXED, True)
    assert world.events[0].startswith(f"Scaled: Pool mixed: replicas from 1 to {replicas} (")
    scaling = world.scaling_tick.memories[KEY].scaling
    assert scaling is not None
    assert scaling.status is not None
    assert (scaling.check.status, world.told) == ("True", 1)
    assert scaling.status.time == "2026-01-01T00:00:00Z"


async def test_the_start_that_is_counted_on_is_shown_again_once_it_changes_by_a_second() -> None:
    busy = row("a", running_requests=1, start={"weights": 6.0})
    world = World(scaled_service(least=1), (load(busy),))

    def shown() -> str | None:
        scaling = world.scaling_tick.memories[KEY].scaling
        return scaling.status.start if scaling and scaling.status else None

    def started(seconds: float) -> None:
        start = {"start_seconds": seconds, "start_phases": {"image": 12.0}, "start_pod": "a"}
        world.pods(Role.MIXED, 1, **start)

    await world.tick()
    assumed = "mixed: an engine is assumed to start in 30 s, until a start was measured"
    assert shown() == assumed
    started(20.0)
    await world.tick(times=14)
    assert shown() == assumed, "not at each tick"
    await world.tick()
    measured = "mixed: an engine starts in 20.0 s: image 12.0 s, weights 6.0 s, rest 2.0 s"
    assert (shown(), world.told) == (measured, 2)
    started(20.4)
    await world.tick(times=30)
    assert (shown(), world.told) == (measured, 2), "less than a second"
    started(412.0)
    await world.tick()
    assert world.told == 3
    assert "412.0 s" in (shown() or "")


async def test_the_share_of_answers_in_time_is_shown_beside_the_reason() -> None:
    world = World(scaled_service(least=1))

    def answers(requests: int, in_time: int) -> None:
        counts = {"slo_requests_total": requests, "slo_in_time_total": in_time}
        world.loads = (load(row("a", running_requests=1, **counts)),)

    def shown() -> str | None:
        scaling = world.scaling_tick.memories[KEY].scaling
        return scaling.status.in_time_percent if scaling and scaling.status else None

    answers(1000, 0)
    await world.tick()
    assert (shown(), world.told) == (None, 1)
    answers(1200, 199)
    await world.tick(times=31)
    assert (shown(), world.told) == ("99.5", 2)
    answers(1210, 208)
    await world.tick(times=35)
    assert (shown(), world.told) == ("99.5", 2), "less than a percent"
    answers(1220, 209)
    await world.tick(times=35)
    assert (shown(), world.told) == ("95", 3)
    scaling = world.scaling_tick.memories[KEY].scaling
    assert scaling is not None
    assert scaling.status is not None
    assert scaling.status.in_time_requests == 220


async def test_what_was_written_counts_before_its_event_comes_back() -> None:
    world = World(scaled_service(), (load(row("a", **BUSY)),))
    await world.tick()
    (_, wanted), pool = world.writes[0], world.inventory.pool_samples(KEY)[Role.MIXED]
    assert (pool.replicas, pool.ready, pool.surplus) == (wanted, 1, 0)
    world.inventory.pool_seen(KEY, Role.MIXED, old := _pods(replicas=1, generation=1))
    world.inventory.service_seen(KEY, world.scaled)
    assert world.inventory.pool_samples(KEY)[Role.MIXED].replicas == wanted, f"{old} is older"
    world.inventory.pool_seen(KEY, Role.MIXED, _pods(replicas=7, generation=9))
    assert world.inventory.pool_samples(KEY)[Role.MIXED].replicas == 7, "somebody has written since"


async def test_a_pod_without_its_claim_has_no_place_only_after_some_seconds() -> None:
    world = World(scaled_service(replicas=2))
    seen = PoolPods(2, 1, ready=1, unschedulable=1, claimless=(START,), live=2, planned=2)
    world.inventory.pool_seen(KEY, Role.MIXED, seen)
    assert world.inventory.pool_samples(KEY)[Role.MIXED].unschedulable == 0
    world.clock.elapsed_seconds += 10.0
    assert world.inventory.pool_samples(KEY)[Role.MIXED].unschedulable == 1


def _pods(replicas: int, generation: int) -> PoolPods:
    return PoolPods(replicas, generation, ready=1, live=1, planned=1)


async def test_engines_that_move_count_for_the_pool_that_they_move_to() -> None:
    """So the decisions of the meantime, also those of another operator, change nothing."""
    service = scaled_service(2, roles=BOTH, least=1)
    move = MoveInProgress(Role.PREFILL, 1, source_before=2, target_after=3, since="")
    world = World(service)
    world.inventory.replicas_written(KEY, Written(Role.DECODE, 3, 2, move))
    pools = world.inventory.pool_samples(KEY)
    prefill, decode = pools[Role.PREFILL], pools[Role.DECODE]
    assert (prefill.replicas, prefill.moving, prefill.surplus) == (1, 1, 1)
    assert (decode.replicas, decode.moving) == (3, 0)
    world.inventory.service_seen(KEY, world.scaled)
    assert world.inventory.pool_samples(KEY) == pools, "the store has not seen it yet"
    world.inventory.replicas_written(KEY, Written(Role.PREFILL, 1, 2))
    after = world.inventory.pool_samples(KEY)[Role.PREFILL]
    assert (after.replicas, after.moving) == (1, 0)


async def test_steps_of_a_move_are_told_instead_of_numbers() -> None:
    world = World(scaled_service(2, roles=BOTH, least=2))
    world.comes = ScalingOutcome(events=(Event("Normal", "EngineMoved", "Engine a moves"),))
    await world.tick()
    assert world.events == ["EngineMoved: Engine a moves"]


async def test_without_a_router_that_answers_everything_stays_and_says_why() -> None:
    world = World(scaled_service(replicas=3), (load(row("a")),))
    await world.tick()
    world.loads = ()
    told = world.told
    await world.tick(times=200)
    assert world.writes == []
    scaling = world.scaling_tick.memories[KEY].scaling
    assert scaling is not None
    assert scaling.check.status == "False"
    assert world.told == told + 1, "not at each tick"


async def test_a_write_that_fails_is_told_and_tried_again() -> None:
    world = World(scaled_service(), (load(row("a", **BUSY)),), UnavailableError("PATCH", "away"))
    await world.tick()
    scaling = world.scaling_tick.memories[KEY].scaling
    assert scaling is not None
    assert (scaling.check.status, scaling.check.reason) == ("False", "ScaleFailed")
    assert "away" in scaling.check.message
    assert world.events == []
    world.fails = None
    await world.tick()
    assert len(world.writes) == 1


async def test_a_service_that_is_not_scaled_any_more_is_left_alone() -> None:
    world = World(scaled_service(), (load(row("a", **BUSY)),))
    world.inventory.service_seen(KEY, None)
    await world.tick()
    assert (world.writes, world.told) == ([], 0)


async def test_nothing_is_decided_before_the_pods_of_every_pool_were_counted() -> None:
    world = World(scaled_service(roles=BOTH), (load(row("a", role=Role.PREFILL, **BUSY)),))
    world.inventory.forget(KEY)
    world.inventory.service_seen(KEY, world.scaled)
    world.pods(Role.PREFILL, 1)
    await world.tick()
    assert world.writes == []
    world.pods(Role.DECODE, 1)
    await world.tick()
    assert {role for role, _ in world.writes} >= {Role.PREFILL}


def written_by(world: World, generation: int, *managers: str) -> None:
    pool = replace(
        world.scaled.pools[Role.MIXED],
        generation=generation,
        others=frozenset((manager, str(generation)) for manager in managers),
    )
    world.inventory.service_seen(KEY, replace(world.scaled, pools={Role.MIXED: pool}))
    world.generation = generation


async def test_what_a_person_writes_once_is_replaced_and_whoever_insists_is_left_alone() -> None:
    world = World(scaled_service(), (load(row("a", **BUSY)),))
    await world.tick()
    written_by(world, 3, "person")
    world.inventory.service_seen(KEY, world.scaled)
    await world.tick()
    assert len(world.writes) == 2
    written_by(world, 5, "kube-controller-manager")
    await world.tick(times=20)
    assert len(world.writes) == 2
    scaling = world.scaling_tick.memories[KEY].scaling
    assert scaling is not None
    assert (scaling.check.status, scaling.check.reason) == ("False", "ScaledByAnother")
    assert "kube-controller-manager" in scaling.check.message
    world.clock.elapsed_seconds += 601
    await world.tick()
    assert len(world.writes) == 3, "it has been silent"


async def test_a_service_keeps_its_former_scaler_out_once_it_is_scaled_internally() -> None:
    world = World(scaled_service(), (load(row("a", **BUSY)),))
    written_by(world, 2, "keda")
    await world.tick(times=5)
    assert len(world.writes) == 1


def test_a_reason_that_comes_and_goes_is_not_told_each_time() -> None:
    stays = Decision({}, "Enough", "")
    changes = Decision({Role.MIXED: PoolDecision(Role.MIXED, 1, 2, "QueuedWork", "")}, "Other", "")

    def scaling(status: Literal["True", "False"], reason: str) -> Scaling:
        return Scaling(Check(status, reason, ""))

    enough, other = scaling("True", "Enough"), scaling("True", "Stabilising")
    assert is_news(None, enough, stays, 0.0)
    assert not is_news(enough, enough, stays, 1e9)
    assert not is_news(enough, other, stays, 29.0)
    assert is_news(enough, other, stays, 30.0)
    assert is_news(enough, other, changes, 0.0)
    assert is_news(enough, failed := scaling("False", "MetricsMissing"), stays, 0.0)
    assert not is_news(failed, failed, changes, 1e9)
    assert is_news(failed, scaling("False", "ScaleFailed"), stays, 0.0)


async def test_a_clock_that_is_set_back_stops_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(scaled_service(replicas=2), (load(row("a")),))
    await world.tick()
    monkeypatch.setattr(world.clock, "now", lambda: START - timedelta(days=1))
    await world.tick(times=2)
    first, *later = (tick.sample.time_seconds for tick in world.noted)
    assert [seconds - first for seconds in later] == [TICK_SECONDS, 2 * TICK_SECONDS]


async def test_a_service_that_begins_at_zero_stays_there_until_a_request_waits() -> None:
    world = World(scaled_service(replicas=0), (load(),))
    await world.tick(times=3)
    assert world.writes == []
    world.loads = (load(waiting=1),)
    await world.tick()
    assert world.writes == [(Role.MIXED, 1)]


class Switched(World):
    """Its mode changes while its routers are asked."""

    now: ScaledService | None = None

    async def __call__(self, routers: Iterable[str]) -> tuple[ServiceLoad, ...]:
        loads = await super().__call__(routers)
        self.inventory.service_seen(KEY, self.now)
        for role in self.now.pools if self.now else ():
            self.pods(role, 1)
        return loads


@pytest.mark.parametrize("now", [None, scaled_service(roles=BOTH)])
async def test_a_tick_whose_service_has_another_mode_by_now_looks_again(
    now: ScaledService | None,
) -> None:
    world = Switched(scaled_service(), (load(row("a", **BUSY)),))
    world.now = now
    assert await world.tick() == 0.0
    assert (world.writes, world.noted, world.events) == ([], [], [])
