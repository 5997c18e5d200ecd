"""Several engines under one trace: pools for prefill and decode, or mixed engines.

Each simulated engine runs the real scheduler and role, with a cost model as its device and
simulated wires for pages and messages. For each request a few engines of each pool are drawn at
random, and the least loaded of them gets it. An engine receives messages between its steps, as a
real one does. Every step is scheduled; the CPU's work for a step is assumed to overlap with the
device's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sluice_contract.cluster.labels import Role
from sluice_runtime.engine.role import EngineRole, MixedRole
from sluice_runtime.handover.decode_role import DecodePorts, DecodeRole
from sluice_runtime.handover.prefill_role import PrefillPorts, PrefillRole
from sluice_runtime.handover.publishing import HostPublisher
from sluice_runtime.scheduler.batch import Batch, SampledTokens
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.wire.messages import Generate, PrefillEngine, TokenDelta

from sluice_simulator.costs import Cost
from sluice_simulator.device import SimulatedDevice
from sluice_simulator.handover import (
    Calendar,
    DecodeEnd,
    HandOvers,
    Network,
    PagesEnd,
    PrefillEnd,
    Wires,
)
from sluice_simulator.record import Record
from sluice_simulator.replay import GREEDY, Options
from sluice_simulator.traces.request import Trace
from sluice_simulator.traces.tokens import END_OF_ANSWER, prompt_ids

DRAWN: Final = 3
"""Number of engines of a pool that are drawn for a request, as the router does."""


@dataclass(frozen=True)
class Pool:
    """Equal engines of one role. A prefill pool needs a decode pool, and the other way round."""

    role: Role
    replicas: int
    cost: Cost
    settings: SchedulerSettings


class NoGrammars:
    """Grammar queue that does nothing, since requests of a trace have no grammar."""

    def add(self, message: Generate) -> None:
        raise AssertionError("no request of a trace has a grammar")

    def abort(self, request_id: str) -> None:
        """Does nothing: no request waits here."""

    def resumed(self, request_id: str, token: int) -> None:
        """Does nothing: no answer follows a grammar."""

    def ended(self, request_id: str) -> None:
        """Does nothing: no answer follows a grammar."""


@dataclass(frozen=True, slots=True)
class FleetStep:
    """A batch that the device is computing."""

    batch: Batch
    tokens: SampledTokens
    seconds: float
    planned_seconds: float


class FleetEngine:
    """One engine. Its loop runs when a message arrives or a step ends."""

    def __init__(
        self,
        pool: Pool,
        number: int,
        wires: Wires,
        record: Record,
        on_delta: Callable[[TokenDelta], None],
    ) -> None:
        """`on_delta`: called with each delta for clients."""
        self._calendar = wires.calendar
        self._settings = settings = replace(pool.settings, report_chunks=pool.role is Role.PREFILL)
        pages = settings.limits.kv_pool_tokens // settings.page_size
        self._scheduler = Scheduler(settings, PageAllocator(pages))
        self._device = SimulatedDevice([line.request for line in record.timelines], pool.cost)
        self._seconds_per_token = pool.cost.coefficients.token
        self._record = record
        self._on_delta = on_delta
        self._pending: FleetStep | None = None
        self._woken = False
        self.role_name = pool.role
        self.number = number
        self.held_requests = 0
        self._role = self._made_role(wires)

    @property
    def load(self) -> float:
        """Load for the choice of an engine: the share of its rows in use, plus the seconds that its
        waiting prompts will take."""
        waiting = self._scheduler.status().queued_tokens * self._seconds_per_token
        return self.held_requests / self._settings.max_running_requests + waiting

    def ask(self, message: Generate) -> None:
        self._role.admit(message)
        self.wake()

    def wake(self) -> None:
        """Runs the loop after the other events of the current moment, unless a step is running."""
        if self._pending is None and not self._woken:
            self._woken = True
            self._calendar.at(self._calendar.now, self._turn)

    def _made_role(self, wires: Wires) -> EngineRole:
        scheduler, settings, grammars = self._scheduler, self._settings, NoGrammars()
        if self.role_name is Role.MIXED:
            return MixedRole(scheduler)
        if self.role_name is Role.PREFILL:
            end = PrefillEnd(wires, self.number, self.wake)
            return PrefillRole(
                scheduler,
                grammars,
                settings,
                PrefillPorts(end, HostPublisher(lambda pages, room: 0)),
            )
        draw = random.Random(self.number)  # noqa: S311
        ports = DecodePorts(
            DecodeEnd(wires, self.number, self.wake),
            PagesEnd(wires, self.number, self.wake),
            lambda: draw.getrandbits(63),
        )
        return DecodeRole(scheduler, grammars, settings.page_size, ports)

    def _turn(self) -> None:
        self._woken = False
        now = self._calendar.now
        self._role.receive(now)
        self._role.plan(now)
        self._report(self._scheduler.take_first_tokens())
        if (batch := self._scheduler.next_batch(now)) is None:
            return
        tokens, seconds = self._device.run(batch)
        self._pending = FleetStep(batch, tokens, seconds, now)
        self._calendar.at(now + seconds, self._land)

    def _land(self) -> None:
        pending, self._pending = self._pending, None
        assert pending is not None
        now = self._calendar.now
        outcome = self._scheduler.process(pending.batch, pending.tokens, now)
        self._role.computed(outcome.finished_chunks)
        deltas = [delta for delta in outcome.deltas if not self._role.takes(delta, now)]
        self._record.step(pending.batch, deltas, pending.planned_seconds, pending.seconds, now)
        for delta in deltas:
            self._on_delta(delta)
        self._turn()

    def _report(self, deltas: Sequence[TokenDelta]) -> None:
        """Records and reports tokens that another engine sampled."""
        self._record.tokens(deltas, self._calendar.now)
        for delta in deltas:
            self._on_delta(delta)


@dataclass(frozen=True)
class FleetReplayed:
    """A finished simulation."""

    record: Record
    hand_overs: HandOvers


class FleetReplay:
    """One run of a simulation; make a new object for each run."""

    def __init__(
        self, trace: Trace, pools: Sequence[Pool], network: Network, options: Options, seed: int = 0
    ) -> None:
        self._trace = trace
        self._options = options
        self._draw = random.Random(seed)  # noqa: S311
        self._record = Record(trace.requests, options.sample_seconds)
        self._wires = Wires(Calendar(), network)
        engine_pools = [pool for pool in pools for _ in range(pool.replicas)]
        self._engines = [
            FleetEngine(pool, number, self._wires, self._record, self._on_delta)
            for number, pool in enumerate(engine_pools)
        ]
        self._serving: dict[str, list[FleetEngine]] = {}
        """Engines of each request: the one that answers it, and before its first token the one that
        computes its prompt."""

    def run(self) -> FleetReplayed:
        """Runs until every request of the trace has ended."""
        calendar = self._wires.calendar
        for number, request in enumerate(self._trace.requests):
            calendar.at(request.arrival_seconds, partial(self._arrive, number))
        calendar.run()
        assert not self._serving, f"{len(self._serving)} requests never ended"
        return FleetReplayed(self._record, self._wires.seen)

    def _arrive(self, number: int) -> None:
        request = self._trace.requests[number]
        prefill = self._less_loaded(Role.PREFILL)
        engine = self._less_loaded(Role.DECODE if prefill else Role.MIXED)
        assert engine is not None, "a fleet has mixed engines, or both others"
        message = Generate(
            request_id=str(number),
            prompt_ids=prompt_ids(request, number),
            max_tokens=max(self._options.max_tokens, request.output_tokens),
            sampling=GREEDY,
            stop_token_ids=[END_OF_ANSWER],
            arrival_seconds=request.arrival_seconds,
            prefill=PrefillEngine("", prefill.number, "") if prefill else None,
        )
        self._serving[message.request_id] = [engine, prefill] if prefill else [engine]
        for sender in self._serving[message.request_id]:
            sender.held_requests += 1
        engine.ask(message)

    def _less_loaded(self, role: Role) -> FleetEngine | None:
        of_role = [engine for engine in self._engines if engine.role_name is role]
        drawn = self._draw.sample(of_role, min(DRAWN, len(of_role)))
        return min(drawn, key=lambda engine: engine.load, default=None)

    def _on_delta(self, delta: TokenDelta) -> None:
        """Counts a request off its engines: off the prefill engine at its first token, off the
        other at its last."""
        engines = self._serving[delta.request_id]
        left = 0 if delta.finish_reason else 1
        while len(engines) > left:
            engines.pop().held_requests -= 1
        if not engines:
            del self._serving[delta.request_id]
