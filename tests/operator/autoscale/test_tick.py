"""A tick of one service: what is seen leads to what is written and told."""

from __future__ import annotations

from sluice_contract.labels import Role
from sluice_operator.kube.errors import UnavailableError
from sluice_operator.scaled import PoolPods

from tests.operator.autoscale.world import BOTH, KEY, World, load, row, scaled_service

BUSY = {"queued_work_seconds": 5.0, "queued_requests": 9, "queued_tokens": 9000}


async def test_queued_work_grows_the_pool_and_is_told_once() -> None:
    world = World(scaled_service(), (load(row("a", **BUSY)),))
    await world.tick()
    ((role, replicas),) = world.writes
    assert (role, replicas > 1) == (Role.MIXED, True)
    assert world.events[0].startswith(f"Scaled: Pool mixed: replicas from 1 to {replicas} (")
    scaling = world.ticker.ticked[KEY].scaling
    assert scaling is not None
    assert scaling.status is not None
    assert (scaling.check.status, world.told) == ("True", 1)
    assert scaling.status.time == "2026-01-01T00:00:00Z"


async def test_what_was_written_counts_before_its_event_comes_back() -> None:
    world = World(scaled_service(), (load(row("a", **BUSY)),))
    await world.tick()
    (_, wanted), pool = world.writes[0], world.known.pool_samples(KEY)[Role.MIXED]
    assert (pool.replicas, pool.ready, pool.surplus) == (wanted, 1, 0)
    world.known.pool_seen(KEY, Role.MIXED, old := _pods(replicas=1, generation=1))
    world.known.service_seen(KEY, world.scaled)
    assert world.known.pool_samples(KEY)[Role.MIXED].replicas == wanted, f"{old} is older"
    world.known.pool_seen(KEY, Role.MIXED, _pods(replicas=7, generation=9))
    assert world.known.pool_samples(KEY)[Role.MIXED].replicas == 7, "somebody has written since"


def _pods(replicas: int, generation: int) -> PoolPods:
    return PoolPods(replicas, generation, ready=1, live=1, planned=1)


async def test_without_a_router_that_answers_everything_stays_and_says_why() -> None:
    world = World(scaled_service(replicas=3), (load(row("a")),))
    await world.tick()
    world.loads = ()
    told = world.told
    await world.tick(times=200)
    assert world.writes == []
    scaling = world.ticker.ticked[KEY].scaling
    assert scaling is not None
    assert scaling.check.status == "False"
    assert world.told == told + 1, "not at each tick"


async def test_a_write_that_fails_is_told_and_tried_again() -> None:
    world = World(scaled_service(), (load(row("a", **BUSY)),), UnavailableError("PATCH", "away"))
    await world.tick()
    scaling = world.ticker.ticked[KEY].scaling
    assert scaling is not None
    assert (scaling.check.status, scaling.check.reason) == ("False", "ScaleFailed")
    assert "away" in scaling.check.message
    assert world.events == []
    world.fails = None
    await world.tick()
    assert len(world.writes) == 1


async def test_a_service_that_is_not_scaled_any_more_is_left_alone() -> None:
    world = World(scaled_service(), (load(row("a", **BUSY)),))
    world.known.service_seen(KEY, None)
    await world.tick()
    assert (world.writes, world.told) == ([], 0)


async def test_nothing_is_decided_before_the_pods_of_every_pool_were_counted() -> None:
    world = World(scaled_service(roles=BOTH), (load(row("a", role=Role.PREFILL, **BUSY)),))
    world.known.forget(KEY)
    world.known.service_seen(KEY, world.scaled)
    world.pods(Role.PREFILL, 1)
    await world.tick()
    assert world.writes == []
    world.pods(Role.DECODE, 1)
    await world.tick()
    assert {role for role, _ in world.writes} >= {Role.PREFILL}
