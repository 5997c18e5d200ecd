"""Fleet whose size a policy decides, under a trace: arrivals, starts, drains, and a budget.

Of each pool that a request needs, a few engines are drawn, and it goes to the least loaded, by the
router's knowledge at that moment. While a pool has no ready engine, the router holds them. A policy
sees load reports of a certain age. An engine that must go takes no more requests and holds its GPU
until its last answer.

As a router does, the fleet moves the oldest requests of a queue to engines with room, before they
have begun: twice at most, and only where the queue ahead takes longer than the prompt elsewhere.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Final

from sluice_autoscaler.decide import ROLE_CHANGE_SECONDS
from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale.constants import Constants
from sluice_simulator.autoscale.outcome import Change, Trail
from sluice_simulator.autoscale.policies.policy import Policy, Targets
from sluice_simulator.autoscale.replica import Replica, report
from sluice_simulator.autoscale.step_times import StepTimes
from sluice_simulator.autoscale.work import Work
from sluice_simulator.fleet import DRAWN
from sluice_simulator.traces.request import Trace

READY = -1
"""Marker in place of a step's version: the engine is ready."""
HANDED_OVER = -2
MAX_MOVES: Final = 2


class AutoscaledFleet:
    """One replay; create a new one for each."""

    def __init__(
        self, trace: Trace, constants: Constants, policy: Policy, first: Mapping[Role, int]
    ) -> None:
        """`first`: engines of each pool, ready at the beginning; their roles are the pools."""
        self._constants = constants
        self._policy = policy
        self._times = StepTimes(constants)
        self._numbers = count()
        self._events: list[tuple[float, int, Replica, int, Work | None]] = []
        self._order = count()
        self._pools: dict[Role, list[Replica]] = {role: [] for role in first}
        self._pods = 0
        """Number of engines in all pools; each holds a GPU."""
        self._serving: dict[Role, tuple[float, list[Replica]]] = {}
        """Engines of each pool that take requests, and the time until which no other one is
        ready."""
        self._desired = dict(first)
        self._held: deque[Work] = deque()
        self._partners: dict[Work, Replica] = {}
        """Engine of the other pool for each request whose prompt is not computed: the prefill
        engine while it waits for pages, then the decode engine."""
        self._draw = random.Random(constants.seed)  # noqa: S311
        self._reports: tuple[EngineSample, ...] = ()
        self._rooms: dict[Role, list[Room]] = {}
        self._now = 0.0
        self._entry = Role.MIXED if Role.MIXED in first else Role.DECODE
        self.trail = Trail(
            [
                Work(number, r.arrival_seconds, r.prompt_tokens, r.output_tokens)
                for number, r in enumerate(trace.requests)
            ]
        )
        for role, replicas in first.items():
            for _ in range(replicas):
                self._add(self._replica(role, 0.0))

    def run(self) -> Trail:
        """Runs until every request has ended."""
        works, index, left = self.trail.works, 0, len(self.trail.works)
        interval, age = self._policy.interval_seconds, self._constants.report_age_seconds
        reads = self._policy.reads_reports
        tick = interval
        look = tick - age if reads else math.inf
        hand_back = self._constants.hand_back_seconds
        self.trail.peak = self._pods
        self._count()
        while left:
            arrival = works[index].arrival_seconds if index < len(works) else math.inf
            event = self._events[0][0] if self._events else math.inf
            moment = min(arrival, event, look, tick, hand_back)
            self.trail.replica_seconds += self._pods * (moment - self._now)
            self._now = moment
            if moment == arrival:
                self._arrive(works[index])
                index += 1
            elif moment == event:
                left -= self._happen()
            elif moment == look:
                self._reports = self._look()
                look = math.inf
            elif moment == hand_back:
                self._hand_back()
                hand_back += self._constants.hand_back_seconds
            else:
                self._tick()
                tick += interval
                look = tick - age if reads else math.inf
        self.trail.ended_seconds = self._now
        return self.trail

    def _replica(self, role: Role, ready_seconds: float) -> Replica:
        name = f"{role}-{next(self._numbers)}"
        return Replica(name, role, ready_seconds, self._constants, self._times)

    def _add(self, replica: Replica) -> None:
        self._pools[replica.role].append(replica)
        self._pods += 1
        self._serving.pop(replica.role, None)

    def _remove(self, replica: Replica) -> None:
        self._pools[replica.role].remove(replica)
        self._pods -= 1

    def _at(self, seconds: float, replica: Replica, what: int, work: Work | None = None) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), replica, what, work))

    # Requests

    def _arrive(self, work: Work) -> None:
        replica = self._least_loaded(self._entry)
        prefill = self._least_loaded(Role.PREFILL) if self._entry is Role.DECODE else None
        if replica is None or (self._entry is Role.DECODE and prefill is None):
            self._held.append(work)
            return
        self._give(work, replica, prefill)

    def _give(self, work: Work, replica: Replica, prefill: Replica | None) -> None:
        replica.add(work)
        if prefill is None:
            self._wake(replica)
        else:
            self._partners[work] = prefill
            prefill.coming += 1
            self._hear(replica)

    def _least_loaded(self, role: Role) -> Replica | None:
        serving = self._that_serve(role)
        drawn = self._draw.sample(serving, min(DRAWN, len(serving)))
        return min(drawn, key=lambda replica: replica.load(self._now), default=None)

    def _that_serve(self, role: Role) -> list[Replica]:
        until, serving = self._serving.get(role, (0.0, []))
        if self._now >= until:
            active = [replica for replica in self._pools[role] if not replica.draining]
            serving = [replica for replica in active if replica.ready_seconds <= self._now]
            starts = (replica.ready_seconds for replica in active[len(serving) :])
            self._serving[role] = min(starts, default=math.inf), serving
        return serving

    def _give_pages(self, decode: Replica) -> None:
        """Gives pages to requests of a decode engine; their prompts are computed only then."""
        while decode.waiting and decode.can_hold(decode.waiting[0]):
            work = decode.waiting.popleft()
            decode.reserved_tokens += work.reserved_tokens
            decode.coming += 1
            prefill, self._partners[work] = self._partners[work], decode
            prefill.coming -= 1
            prefill.add(work)
            self._wake(prefill)

    def _wake(self, replica: Replica) -> None:
        end = replica.interrupt(self._now) if replica.busy else replica.start(self._now)
        if end is not None:
            self._at(end, replica, replica.version)

    def _happen(self) -> int:
        """Handles the next event; returns the number of requests that have ended."""
        _, _, replica, what, work = heapq.heappop(self._events)
        if what == READY:
            self._release_held()
            return 0
        if what == HANDED_OVER:
            assert work is not None
            replica.handed_over.append(work)
            return self._hear(replica)
        if what != replica.version:
            return 0
        computed, ended = replica.end(self._now)
        finished = len(ended)
        for done in computed:
            if replica.role is Role.PREFILL:
                moment = self._now + self._constants.hand_over_seconds
                self._at(moment, self._partners.pop(done), HANDED_OVER, done)
            else:
                finished += not replica.decode(done, self._now)
        if replica.role is Role.DECODE:
            finished += self._between_steps(replica)
        self._go_on(replica)
        return finished

    def _hear(self, decode: Replica) -> int:
        """Lets a decode engine take in requests and prompts between its steps; returns the number
        of requests that ended."""
        if decode.busy:
            self._wake(decode)
            return 0
        finished = self._between_steps(decode)
        self._go_on(decode)
        return finished

    def _between_steps(self, decode: Replica) -> int:
        """Gives rows to prompts that have come, and pages to requests that wait; returns the number
        of requests that ended."""
        arrived, decode.handed_over = decode.handed_over, []
        decode.coming -= len(arrived)
        finished = sum(not decode.decode(work, self._now) for work in arrived)
        self._give_pages(decode)
        return finished

    def _go_on(self, replica: Replica) -> None:
        end = replica.start(self._now)
        if end is not None:
            self._at(end, replica, replica.version)
        self._remove_if_drained(replica)

    # Hand-back

    def _hand_back(self) -> None:
        """Moves requests that have not begun to engines with room, as known since the previous
        look: at most as many as those have room for."""
        for role, rooms in self._rooms.items():
            sources = [replica for replica in self._pools[role] if replica.waiting] if rooms else ()
            for source in sorted(sources, key=self._load, reverse=True):
                for work, ahead_seconds in source.not_begun(self._now):
                    if work.moves < MAX_MOVES:
                        self._move(work, source, ahead_seconds, rooms)
        until = self._constants.hand_back_seconds
        self._rooms = {role: rooms_of(self._that_serve(role), until) for role in self._pools}

    def _load(self, replica: Replica) -> float:
        return replica.load(self._now)

    def _move(
        self, work: Work, source: Replica, ahead_seconds: float, rooms: Sequence[Room]
    ) -> None:
        room = target_of(work, source, ahead_seconds, rooms, self._now)
        pair = self._pair(work, source, room.replica) if room else None
        if room is None or pair is None:
            return
        room.take(work)
        source.hand_back(work)
        partner = self._partners.pop(work, None)
        if partner is not None:
            partner.coming -= 1
        if partner is not None and source.role is Role.DECODE:
            self._remove_if_drained(partner)
        elif partner is not None:
            partner.reserved_tokens -= work.reserved_tokens
        work.moves += 1
        self._give(work, *pair)
        self._remove_if_drained(source)

    def _pair(
        self, work: Work, source: Replica, target: Replica
    ) -> tuple[Replica, Replica | None] | None:
        """Engines that a request goes to from its source: with two pools, to new ones of both or to
        none."""
        if source.role is Role.MIXED:
            return target, None
        if source.role is Role.DECODE:
            prefill = self._least_loaded(Role.PREFILL)
            return (target, prefill) if prefill else None
        decodes = [replica for replica in self._that_serve(Role.DECODE) if replica.can_hold(work)]
        return (min(decodes, key=self._load), target) if decodes else None

    def _release_held(self) -> None:
        waiting, self._held = self._held, deque()
        for work in waiting:
            self._arrive(work)

    # Size

    def _tick(self) -> None:
        targets = self._policy.targets(self._sample())
        movers = self._movers(targets) if targets.move else []
        for role, desired in targets.replicas.items():
            self._want(role, max(0, min(self._constants.max_replicas, desired)), targets)
        for mover in movers:
            self._remove_if_drained(mover)
        self._fill()
        self._count()

    def _movers(self, targets: Targets) -> list[Replica]:
        """Engines that take no more requests, and change to the other pool once their requests have
        ended."""
        assert targets.move is not None
        move = targets.move
        ready = [
            replica
            for replica in self._pools[move.source]
            if not replica.draining and replica.ready_seconds <= self._now
        ]
        movers = self._victims(ready, targets.victims)[: move.engines]
        for mover in movers:
            mover.draining, mover.becomes = True, move.target
        self._serving.pop(move.source, None)
        return movers

    def _moving(self, role: Role) -> int:
        """Engines on their way to the pool."""
        return sum(replica.becomes is role for pool in self._pools.values() for replica in pool)

    def _count(self) -> None:
        serving = sum(
            replica.ready_seconds <= self._now for pool in self._pools.values() for replica in pool
        )
        self.trail.counts.append((self._now, self._pods, serving))

    def _sample(self) -> Sample:
        pools = {role: self._pool_sample(role) for role in self._pools}
        return Sample(self._now, pools, self._reports, len(self._held))

    def _pool_sample(self, role: Role) -> PoolSample:
        active = [replica for replica in self._pools[role] if not replica.draining]
        ready = sum(replica.ready_seconds <= self._now for replica in active)
        moving = self._moving(role)
        return PoolSample(
            role,
            replicas=self._desired[role],
            ready=ready,
            starting=len(active) + moving - ready,
            unschedulable=self._desired[role] - len(active) - moving,
            surplus=sum(replica.becomes is None for replica in self._pools[role]) - len(active),
        )

    def _look(self) -> tuple[EngineSample, ...]:
        return tuple(
            report(replica, self._now, self._constants)
            for pool in self._pools.values()
            for replica in pool
            if replica.ready_seconds <= self._now
        )

    def _want(self, role: Role, desired: int, targets: Targets) -> None:
        before, self._desired[role] = self._desired[role], desired
        if desired != before:
            change = Change(self._now, role, before, desired, targets.reason, targets.message)
            self.trail.changes.append(change)
        active = [replica for replica in self._pools[role] if not replica.draining]
        for victim in self._victims(active, targets.victims)[: max(0, len(active) - desired)]:
            victim.draining = True
            self._serving.pop(role, None)
            if victim.ready_seconds > self._now:
                self._remove(victim)
            self._remove_if_drained(victim)

    def _victims(self, active: Sequence[Replica], named: Sequence[str]) -> list[Replica]:
        """Order of removal: starting engines, then those that the policy names, then those with the
        least work."""
        place = {name: number for number, name in enumerate(named)}

        def order(replica: Replica) -> tuple[bool, int, float]:
            return (
                replica.ready_seconds <= self._now,
                place.get(replica.name, len(place)),
                replica.load(self._now),
            )

        return sorted(active, key=order)

    def _remove_if_drained(self, replica: Replica) -> None:
        if replica.draining and replica.idle and replica in self._pools[replica.role]:
            self._remove(replica)
            if replica.becomes is not None:
                self._begin(replica.becomes, ROLE_CHANGE_SECONDS)
            self._fill()

    def _begin(self, role: Role, seconds: float) -> None:
        """Adds an engine that is ready in so many seconds."""
        replica = self._replica(role, self._now + seconds)
        self._add(replica)
        self._at(replica.ready_seconds, replica, READY)

    def _fill(self) -> None:
        """Starts missing engines within the budget, one of each pool in turn."""
        budget = self._constants.gpu_budget
        missing = True
        while missing:
            missing = False
            for role, pool in self._pools.items():
                active = sum(not member.draining for member in pool) + self._moving(role)
                if active < self._desired[role] and (budget is None or self._pods < budget):
                    self._begin(role, self._constants.boot_seconds)
                    missing = True
        self.trail.peak = max(self.trail.peak, self._pods)


class Room:
    """An engine without a queue, and what it has room for, as a router knows it."""

    def __init__(self, replica: Replica, seconds: float) -> None:
        self.replica = replica
        self.rows = replica.free_rows()
        self.tokens = replica.free_tokens()
        self.seconds = math.inf if replica.role is Role.DECODE else seconds
        """Time of prompts until the router looks again: more would be a queue there, too."""

    def take(self, work: Work) -> None:
        """A request goes there."""
        self.rows -= 1
        self.tokens -= work.reserved_tokens
        self.seconds -= self.replica.seconds_of(work)


def rooms_of(replicas: Iterable[Replica], seconds: float) -> list[Room]:
    """Engines with room, as they are until a look so much later."""
    rooms = [Room(replica, seconds) for replica in replicas]
    return [room for room in rooms if room.rows]


def target_of(
    work: Work, source: Replica, ahead_seconds: float, rooms: Sequence[Room], now: float
) -> Room | None:
    """The least loaded engine with room, if its prompts take less than the queue ahead."""
    best: Room | None = None
    for room in rooms:
        if room.replica is source or room.replica.draining or not room.rows:
            continue
        if work.reserved_tokens > room.tokens or room.seconds <= 0:
            continue
        if best is None or room.replica.load(now) < best.replica.load(now):
            best = room
    if best is None:
        return None
    decode = source.role is Role.DECODE
    return best if decode or ahead_seconds > best.replica.seconds_with(work) else None
