"""A fleet under a policy: nothing is lost, nothing is over budget, and time goes by as it would."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from sluice_autoscaler.decision import Move
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.constants import AZURE
from sluice_simulator.autoscale.fleet import AutoscaledFleet, rooms_of, target_of
from sluice_simulator.autoscale.outcome import Trail, itl_seconds, ttft_seconds
from sluice_simulator.autoscale.policies.policy import Plan, Static, Targets
from sluice_simulator.autoscale.replica import Replica
from sluice_simulator.autoscale.step_times import StepTimes
from sluice_simulator.autoscale.work import Work
from sluice_simulator.traces.request import Trace, TraceRequest

from tests.simulator.autoscale.scenes import Recording, chats, erratic

MIXED, TWO = [Role.MIXED], [Role.PREFILL, Role.DECODE]


def run(trace: Trace, policy: object, first: dict[Role, int], **changed: object) -> Trail:
    constants = replace(AZURE, **changed)  # type: ignore[arg-type]
    return AutoscaledFleet(trace, constants, policy, first).run()  # type: ignore[arg-type]


@pytest.mark.parametrize("roles", [MIXED, TWO], ids=["mixed", "two-pools"])
@pytest.mark.parametrize("seed", range(3))
def test_every_request_ends_whatever_a_policy_wants(roles: list[Role], seed: int) -> None:
    policy = erratic(roles, seed, most=7)
    trail = run(chats(300.0, 2.0, seed), policy, dict.fromkeys(roles, 2), gpu_budget=6)
    for work in trail.works:
        assert work.arrival_seconds < work.first_token_seconds <= work.ended_seconds
        assert itl_seconds(work) >= StepTimes(AZURE).base_seconds or work.output_tokens == 1
    assert trail.peak <= 6
    assert max(pods for _, pods, _ in trail.counts) <= 6
    finished = sum(e.figures.finished_requests_total or 0 for e in policy.samples[-1].engines or ())
    assert finished <= len(trail.works) * len(roles)
    for sample in policy.samples:
        held = sum(p.ready + p.starting + p.surplus for p in sample.pools.values())
        assert held <= 6
        for pool in sample.pools.values():
            assert pool.replicas == pool.ready + pool.starting + pool.unschedulable


@pytest.mark.parametrize("roles", [MIXED, TWO], ids=["mixed", "two-pools"])
def test_steps_taken_at_once_end_when_single_ones_do(
    roles: list[Role], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = chats(60.0, 2.0)

    def ends() -> list[tuple[float, float]]:
        works = run(trace, Static(dict.fromkeys(roles, 2)), dict.fromkeys(roles, 2)).works
        return [(work.first_token_seconds, work.ended_seconds) for work in works]

    at_once = ends()
    start = Replica.start

    def single(self: Replica, now: float) -> float | None:
        end = start(self, now)
        if end is None or self._steps == 1:
            return end
        self._steps = 1
        return now + self._times.run_seconds(1, self.rows, self._context)

    monkeypatch.setattr(Replica, "start", single)
    for fast, slow in zip(at_once, ends(), strict=True):
        assert fast == pytest.approx(slow, abs=1e-6)


def test_an_engine_takes_requests_once_it_has_started_and_costs_from_the_decision_on() -> None:
    crowd = [TraceRequest(11.0, 2000, 100)] * 120
    burst = Trace("burst", (*crowd, TraceRequest(60.0, 2000, 100)))
    plan = Plan({Role.MIXED: ((0.0, 1), (10.0, 3))})
    small, grown = (
        run(burst, policy, {Role.MIXED: 1}) for policy in (Static({Role.MIXED: 1}), plan)
    )
    held = [(seconds, pods, serving) for seconds, pods, serving in grown.counts if pods == 3]
    assert held[0][:2] == (10.0, 3)
    assert min(seconds for seconds, _, serving in held if serving == 3) == 40.0
    assert math.isclose(grown.replica_seconds, 10.0 + 3 * (grown.ended_seconds - 10.0))
    (*_, late), (*_, behind) = grown.works, small.works
    assert ttft_seconds(late) < ttft_seconds(behind)


@pytest.mark.parametrize("roles", [MIXED, TWO], ids=["mixed", "two-pools"])
@pytest.mark.parametrize("tokens", [(2000, 100), (200, 3000)], ids=["prompts", "answers"])
def test_new_engines_take_what_has_not_begun_in_full_ones(
    roles: list[Role], tokens: tuple[int, int]
) -> None:
    crowd = Trace("crowd", tuple(TraceRequest(11.0 + n / 1000, *tokens) for n in range(150)))
    plan, first = Plan(dict.fromkeys(roles, ((0.0, 1), (10.0, 3)))), dict.fromkeys(roles, 1)
    kept = run(crowd, plan, first, hand_back_seconds=math.inf)
    moved = run(crowd, plan, first)
    assert {work.moves for work in kept.works} == {0}
    assert 0 < max(work.moves for work in moved.works) <= 2
    assert all(work.first_token_seconds > 40.0 for work in moved.works if work.moves)
    late, sooner = (
        [ttft_seconds(work) for work in trail.works if ttft_seconds(work) > 30.0]
        for trail in (kept, moved)
    )
    assert max(sooner) - 30.0 < 0.6 * (max(late) - 30.0)
    assert sorted(sooner) <= sorted(late)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_request_stays_where_the_queue_ahead_is_shorter_than_its_own_prompt(ahead: int) -> None:
    times, now = StepTimes(AZURE), 0.4
    full, idle = (Replica(name, Role.MIXED, 0.0, AZURE, times) for name in ("full", "idle"))
    for number in range(ahead + 1):
        full.add(Work(number, number / 10, 600, 10))
    full.add(Work(9, 0.3, 600 + 600 * ahead, 10))
    (*_, (last, seconds)) = full.not_begun(now)
    assert last.number == 9
    assert seconds == pytest.approx((ahead + 1) * 600 * times.token_seconds)
    assert target_of(last, full, seconds, rooms_of([full, idle], 0.5), now) is None
    (room,) = rooms_of([full, idle], 0.5)
    assert target_of(last, full, seconds * 1.01, [room], now) is room
    assert target_of(last, full, math.inf, rooms_of([full], 0.5), now) is None


def test_an_engine_gets_as_many_prompts_as_it_computes_until_the_router_looks_again() -> None:
    times, now = StepTimes(AZURE), 0.4
    full, idle = (Replica(name, Role.MIXED, 0.0, AZURE, times) for name in ("full", "idle"))
    prompt = int(0.2 / times.token_seconds)
    works = [Work(number, 0.0, prompt, 10) for number in range(6)]
    (room,) = rooms_of([idle], 0.5)
    moved = 0
    for work in works:
        if target_of(work, full, math.inf, [room], now) is room:
            room.take(work)
            moved += 1
    assert moved == 3
    tiny = replace(AZURE, max_running_requests=2)
    small = Replica("small", Role.DECODE, 0.0, tiny, times)
    rooms = rooms_of([small], 0.0)
    assert [room.rows for room in rooms] == [2], "pages and rows are what a decode engine has"
    small.waiting.append(works[0])
    assert rooms_of([small], 0.5) == []


def test_a_request_that_moves_keeps_its_place_and_counts_as_received_once() -> None:
    replica = Replica("a", Role.MIXED, 0.0, AZURE, StepTimes(AZURE))
    works = [Work(number, float(number), 100, 10) for number in range(4)]
    replica.add(works[0])
    replica.add(works[3])
    works[1].moves = 1
    replica.add(works[1])
    assert list(replica.waiting) == [works[0], works[1], works[3]]
    assert (replica.received_tokens, replica.queued_tokens) == (200, 300)
    works[0].computed_tokens = 16
    replica.hand_back(works[1])
    replica.add(early := Work(7, -1.0, 100, 10))
    assert list(replica.waiting) == [works[0], early, works[3]]
    assert [work for work, _ in replica.not_begun(5.0)] == [early, works[3]]


def test_requests_wait_at_the_router_while_no_engine_serves() -> None:
    trace = Trace("few", tuple(TraceRequest(20.0 + n, 500, 10) for n in range(5)))
    trail = run(trace, Plan({Role.MIXED: ((0.0, 1), (10.0, 0), (20.0, 1))}), {Role.MIXED: 1})
    assert all(50.0 < work.first_token_seconds < 53.0 for work in trail.works)


def test_a_drained_engine_holds_its_gpu_until_its_last_answer() -> None:
    trace = Trace("long", (TraceRequest(1.0, 500, 2000), TraceRequest(100.0, 500, 10)))
    trail = run(trace, Plan({Role.MIXED: ((0.0, 2), (10.0, 1))}), {Role.MIXED: 2})
    assert trail.replica_seconds == pytest.approx(trail.ended_seconds + 10.0)
    keeping = Plan({Role.MIXED: ((0.0, 1), (4.0, 0), (90.0, 1))})
    trail = run(trace, keeping, {Role.MIXED: 1})
    (long, late) = trail.works
    assert long.ended_seconds > 80.0
    assert late.first_token_seconds > 120.0
    assert trail.changes[0].after == 0


def test_a_pool_without_room_for_more_pages_lets_requests_wait() -> None:
    crowd = Trace("crowd", tuple(TraceRequest(0.1, 1000, 3000) for _ in range(120)))
    trail = run(crowd, Static({Role.MIXED: 1}), {Role.MIXED: 1}, max_running_requests=10_000)
    most_at_once = max(
        sum(w.first_token_seconds <= at < w.ended_seconds for w in trail.works)
        for at in sorted(w.first_token_seconds for w in trail.works)
    )
    assert most_at_once == AZURE.kv_pool_tokens // 2500


def test_what_waits_for_pages_of_decode_engines_is_spread_over_them() -> None:
    crowd = Trace("crowd", tuple(TraceRequest(0.1 * n, 100, 3000) for n in range(300)))
    both = {Role.PREFILL: 2, Role.DECODE: 2}
    fleet = AutoscaledFleet(crowd, AZURE, Static(both), both)
    fleet.run()
    finished = [decode.finished for decode in fleet._pools[Role.DECODE]]
    assert sum(finished) == 300
    assert finished[0] == pytest.approx(150, abs=15)


def test_the_same_seed_is_the_same_replay() -> None:
    runs = [run(chats(120.0), erratic(MIXED, 1, most=4), {Role.MIXED: 2}).works for _ in range(2)]
    assert all(
        (a.first_token_seconds, a.ended_seconds) == (b.first_token_seconds, b.ended_seconds)
        for a, b in zip(*runs, strict=True)
    )


def moving(samples: int) -> Targets:
    """One engine of two goes from prefill to decode, at the second look."""
    prefill, decode = (1, 3) if samples > 1 else (2, 2)
    move = Move(Role.PREFILL, Role.DECODE, 1, 3) if samples == 2 else None
    return Targets({Role.PREFILL: prefill, Role.DECODE: decode}, move=move)


def test_an_engine_that_moves_ends_its_work_first_and_is_ready_without_a_start() -> None:
    policy = Recording(moving)
    both = {Role.PREFILL: 2, Role.DECODE: 2}
    trail = run(chats(120.0, 2.0), policy, both, gpu_budget=4, boot_seconds=1000.0)
    assert {pods for _, pods, _ in trail.counts} == {4}
    assert trail.peak == 4
    after = policy.samples[-1].pools
    assert (after[Role.PREFILL].ready, after[Role.DECODE].ready) == (1, 3)
    for sample in policy.samples:
        assert all(not pool.unschedulable for pool in sample.pools.values())
    assert all(work.ended_seconds for work in trail.works)
