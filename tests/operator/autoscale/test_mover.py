"""A move of engines, whichever operator process carries out a step, and whenever one dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

import pytest
from sluice_autoscaler.decision import Decision, Move, PoolDecision
from sluice_contract.cluster.labels import Role
from sluice_operator.autoscale.carry_out import PoolScaler, Victims
from sluice_operator.autoscale.events import ScalingOutcome
from sluice_operator.autoscale.mover import MOVED_REASON, Mover
from sluice_operator.kube.client import ApiClient
from sluice_operator.scaled import DELETION_COST, MOVED, PoolPods, ScaledService, move_to

from tests.operator.autoscale.two_pools import DiedError, TwoPools, owner_of
from tests.operator.autoscale.world import BOTH, scaled_service
from tests.operator.virtual_time import FakeClock

PREFILL, DECODE = Role.PREFILL, Role.DECODE
PODS = {role: PoolPods(1, 1) for role in BOTH}


class Plane:
    """An API server that operators come to, one after the other, and one decision to move."""

    def __init__(self, prefill: int = 3, decode: int = 2, engines: int = 1) -> None:
        self.api = TwoPools({PREFILL: prefill, DECODE: decode})
        self.clock = FakeClock()
        self.engines = engines
        self.alike = True
        self.after: Callable[[], None] = lambda: None
        """What goes on while an operator waits."""

    def scaled(self) -> ScaledService:
        """The service as an operator sees it now."""
        service = scaled_service(roles=BOTH, engines_move=self.alike)
        pools = {
            role: replace(
                pool,
                replicas=self.api.pools[role]["spec"]["replicas"],
                move=move_to(self.api.pools[role]),
            )
            for role, pool in service.pools.items()
        }
        return replace(service, pools=pools)

    def decision(self) -> Decision:
        """Of prefill to decode, as long as none has begun."""
        scaled = self.scaled()
        counts = {role: pool.replicas for role, pool in scaled.pools.items()}
        begun = any(pool.move for pool in scaled.pools.values())
        size = counts[DECODE] + self.engines
        move: Move | None = Move(PREFILL, DECODE, self.engines, size)
        shrinks = PoolDecision(PREFILL, counts[PREFILL], counts[PREFILL] - self.engines, "Test", "",
                               ("prefill-1",))  # fmt: skip
        grows = PoolDecision(DECODE, counts[DECODE], size, "Test", "")
        if begun or counts[PREFILL] == self.api.sizes[PREFILL] - self.engines:
            shrinks = replace(shrinks, desired=shrinks.current)
            grows = replace(grows, desired=grows.current)
            move = None
        return Decision({PREFILL: shrinks, DECODE: grows}, "Test", "", move=move)

    async def tick(self) -> ScalingOutcome:
        """Of a new operator process: it remembers nothing."""
        client = ApiClient(self.api, lambda verb, plural: None)
        mover = Mover(client, WaitingClock(self.clock, self.after))
        scaler = PoolScaler(client, Victims(client), mover)
        return await scaler(self.scaled(), PODS, self.decision())


class WaitingClock(FakeClock):
    """The time of another clock; while somebody waits, something goes on."""

    def __init__(self, clock: FakeClock, after: Callable[[], None]) -> None:
        super().__init__()
        self._clock, self._after = clock, after

    def now(self) -> datetime:
        return self._clock.now()

    async def sleep(self, seconds: float) -> None:
        self._clock.elapsed_seconds += seconds
        self._after()


def moved(plane: Plane) -> None:
    """Holds once an engine has moved, with nothing left of it and no engine that served ended."""
    api = plane.api
    api.control()
    assert api.ended == []
    prefill, decode = api.sizes[PREFILL] - plane.engines, api.sizes[DECODE] + plane.engines
    assert api.replicas() == {PREFILL: prefill, DECODE: decode}
    assert list(api.notes()) == [{}, {}]
    assert len(api.pods) == prefill + decode
    assert all(not name.startswith("new") for name in api.pods), "none was started to stay"
    marks = [p for p in api.of(DECODE) if MOVED in (p["metadata"].get("annotations") or {})]
    assert len(marks) == plane.engines


@pytest.mark.parametrize("engines", [1, 2])
async def test_the_engine_with_the_least_work_moves_and_serves_on(engines: int) -> None:
    plane = Plane(engines=engines)
    plane.api.pods["prefill-1"]["metadata"]["annotations"] = {DELETION_COST: "-1", "a": "b"}
    begun = await plane.tick()
    assert [(w.role, w.replicas) for w in begun.written] == [(DECODE, 2 + engines)]
    plane.api.control()
    plane.after = plane.api.control
    done = await plane.tick()
    moved(plane)
    notes = plane.api.pods["prefill-1"]["metadata"]["annotations"]
    assert (notes["a"], DELETION_COST in notes) == ("b", False)
    names = ["prefill-1", "prefill-0"][:engines]
    text = "Engine {} moves from pool prefill to pool decode, and takes its role."
    assert [(e.reason, e.message) for e in done.events or ()] == [
        (MOVED_REASON, text.format(name)) for name in names
    ]
    assert [(w.role, w.replicas) for w in done.written] == [(PREFILL, 3 - engines)]


@pytest.mark.parametrize("dies_at", range(1, 7))
@pytest.mark.parametrize("is_slow", [False, True])
async def test_an_operator_that_dies_after_any_write_is_continued(
    dies_at: int, is_slow: bool
) -> None:
    """`is_slow`: ReplicaSets act only once the next operator has looked."""
    plane = Plane(engines=2)
    plane.api.dies_at_write = dies_at
    plane.after = (lambda: None) if is_slow else plane.api.control
    for _ in range(12):
        try:
            await plane.tick()
        except DiedError:
            if is_slow:
                await plane.tick()
        plane.api.control()
        plane.clock.elapsed_seconds += 2.0
    moved(plane)


async def test_each_step_waits_for_what_it_needs() -> None:
    plane = Plane()
    await plane.tick()
    await plane.tick()
    assert len(plane.api.writes) == 1, "the new engine's pod is not there"
    plane.api.control()
    await plane.tick()
    assert len(plane.api.writes) == 2
    await plane.tick()
    assert len(plane.api.writes) == 2, "its pod is not the other ReplicaSet's"
    (owner,) = plane.api.pods["prefill-1"]["metadata"]["ownerReferences"]
    assert owner["name"] == owner_of(PREFILL)
    plane.api.control()
    await plane.tick()
    moved(plane)


async def given_up(plane: Plane, why: str) -> None:
    """Holds once a move has ended, and says so."""
    outcome = await plane.tick()
    (event,) = outcome.events or ()
    assert why in event.message
    assert list(plane.api.notes()) == [{}, {}]
    assert plane.api.ended == []


async def test_an_engine_that_is_ready_first_was_started_and_none_moves() -> None:
    plane = Plane()
    await plane.tick()
    plane.api.control()
    plane.api.all_ready()
    await given_up(plane, "the engines that were started instead are ready")
    assert plane.api.replicas() == {PREFILL: 3, DECODE: 3}


async def test_a_move_that_takes_too_long_ends() -> None:
    plane = Plane()
    await plane.tick()
    plane.clock.elapsed_seconds += 61.0
    await given_up(plane, "it took too long")


async def test_a_change_of_the_pools_ends_it() -> None:
    plane = Plane()
    await plane.tick()
    plane.api.control()
    plane.alike = False
    await given_up(plane, "the pools are not alike any more")


async def test_pods_of_two_templates_end_it() -> None:
    plane = Plane()
    await plane.tick()
    plane.api.control()
    plane.api.pods["prefill-0"]["metadata"]["labels"]["pod-template-hash"] = "cccc"
    await given_up(plane, "two templates")


async def test_replicas_that_somebody_else_writes_end_it() -> None:
    plane = Plane()
    await plane.tick()
    plane.api.control()
    plane.api.pools[PREFILL]["spec"]["replicas"] = 5
    await given_up(plane, "the replicas of a pool were changed")


async def test_engines_that_are_not_ready_do_not_move() -> None:
    plane = Plane(prefill=1)
    await plane.tick()
    plane.api.control()
    plane.api.pods["prefill-0"]["status"]["conditions"][0]["status"] = "False"
    await given_up(plane, "too few engines")


async def test_of_two_engines_one_that_has_moved_is_taken_off_its_pool() -> None:
    plane = Plane(engines=2)
    await plane.tick()
    plane.api.control()
    plane.api.dies_at_write = 2
    with pytest.raises(DiedError):
        await plane.tick()
    plane.api.control()
    plane.clock.elapsed_seconds += 61.0
    await plane.tick()
    plane.api.control()
    assert plane.api.replicas() == {PREFILL: 2, DECODE: 4}
    assert list(plane.api.notes()) == [{}, {}]
    assert plane.api.ended == []


async def test_without_the_right_to_patch_pods_engines_end_and_start_as_ever(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plane = Plane()
    plane.api.refuses = {"prefill-1": 403}
    client = ApiClient(plane.api, lambda verb, plural: None)
    scaler = PoolScaler(client, Victims(client), Mover(client, plane.clock))
    await scaler(plane.scaled(), PODS, plane.decision())
    plane.api.control()
    for _ in range(3):
        outcome = await scaler(plane.scaled(), PODS, plane.decision())
    assert "may not patch pods" in caplog.text
    assert caplog.text.count("may not patch pods") == 1
    assert outcome.failed is None
    assert list(plane.api.notes()) == [{}, {}]
    written = [(w.role, w.replicas) for w in outcome.written]
    assert written == [(PREFILL, 2), (DECODE, 4)], "the next decision, without a move"


async def test_a_pod_that_changes_at_the_same_moment_is_read_again() -> None:
    plane = Plane()
    await plane.tick()
    plane.api.control()
    plane.api.refuses = {"prefill-1": 422}
    outcome = await plane.tick()
    assert (outcome.failed, outcome.events) == (None, ())
    plane.api.refuses = {}
    plane.after = plane.api.control
    await plane.tick()
    moved(plane)


def test_an_annotation_that_cannot_be_read_is_no_move() -> None:
    for text in ("", "{}", '{"source":"prefill","engines":1,"source_before":1,"target_after":1,'
                 '"since":"now"}'):  # fmt: skip
        assert move_to({"metadata": {"annotations": {"serving.sluice.dev/moving": text}}}) is None
