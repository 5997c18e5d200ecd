"""The engine's main loop: poll messages, next batch, forward, sample, process, send.

Knows neither how messages travel nor what a model is.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from sluice_contract.cluster.labels import Role as Role

from sluice_runtime.engine.executors import Executor, PendingResult
from sluice_runtime.engine.late_graphs import LateGraphs
from sluice_runtime.engine.outbox import STEP_LIMIT_SECONDS, HeartbeatThread, Outbox
from sluice_runtime.engine.report import Now, Pace, StepLog, figures_from, load_from
from sluice_runtime.engine.role import LAME_DUCK_SECONDS, EngineRole, MixedRole
from sluice_runtime.grammar.waiting import GrammarQueue
from sluice_runtime.scheduler.batch import Batch, ForwardMode
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.wire.messages import (
    Abort,
    Adapters,
    AdaptersChanged,
    Credit,
    Drain,
    FlushCache,
    Generate,
    HandBack,
    HandedBack,
    Heartbeat,
    Load,
    StepResult,
    TakeRole,
    ToApi,
    ToEngine,
    TokenDelta,
)

HEARTBEAT_SECONDS: Final = 1.0
ROLE_LOOK_SECONDS: Final = 0.02
"""Idle poll interval while a role change is pending."""
LOAD_SECONDS: Final = 0.01
"""Longest time for which decode steps repeat a load. Only counts of tokens and pages may have
changed since: a load is made at once after a message, a prompt, an end or a row that leaves."""
DRAINING: Final = "the engine is draining and takes no new requests"
CHANGING: Final = "the engine takes another role, and no new requests before"


@dataclass(frozen=True)
class Clock:
    """`monotonic` is shared by all processes of a host; `unix` is for reports."""

    monotonic: Callable[[], float] = time.monotonic
    unix: Callable[[], float] = time.time
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    """Interval of heartbeats from an engine that has nothing else to send."""
    step_limit_seconds: float = STEP_LIMIT_SECONDS
    """Duration from which a step counts as hung; the engine then sends no more heartbeats."""


class ApiConnection(Protocol):
    """The engine's end of the transport."""

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        """Messages that have arrived. Waits at most `timeout_seconds` for the first one; a compiled
        grammar ends the wait."""
        ...

    def send(self, message: ToApi) -> None:
        """Sends a message; never blocks."""
        ...


class AdapterSource(Protocol):
    """Source of changes to the adapters that requests may name."""

    def take_change(self, scheduler: Scheduler) -> Adapters | None:
        """Tells the scheduler about changes and then returns all adapters; None if nothing
        changed."""
        ...


@dataclass(frozen=True)
class Pipeline:
    """Stages that a request passes in an engine, in this order."""

    grammars: GrammarQueue
    """Compiles the request's grammar, if it has one."""
    scheduler: Scheduler
    """Plans the steps of requests."""
    executor: Executor
    """Runs the planned steps."""
    late_graphs: LateGraphs | None = None
    """Plans the capture of CUDA graphs between steps; None: there are none."""


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A batch that was launched and whose result has not been processed."""

    batch: Batch
    result: PendingResult
    planned_seconds: float
    """Duration of planning the batch."""
    launched_seconds: float


@dataclass(frozen=True, slots=True)
class RoleChange:
    """Pending change to another role, made once all begun requests have ended."""

    role: Role
    refuses_from: float
    """Time from which new requests are refused; before it, routers that do not know of the change
    may still send requests."""
    gives_up_at: float


class EngineLoop:
    """The main loop of an engine process in one role."""

    def __init__(
        self,
        link: ApiConnection,
        pipeline: Pipeline,
        log: Callable[[Pace], StepLog],
        clock: Clock | None = None,
        role: EngineRole | None = None,
        adapters: AdapterSource | None = None,
    ) -> None:
        self._link = link
        self._grammars = pipeline.grammars
        self._scheduler = pipeline.scheduler
        self._executor = pipeline.executor
        self._late_graphs = pipeline.late_graphs
        self._pending: deque[PendingStep] = deque()
        self._finished_seconds = 0.0
        self._role = role or MixedRole(pipeline.scheduler)
        self._adapters = adapters
        self._clock = clock or Clock()
        self._pace = Pace()
        self._log = log(self._pace)
        self._outbox = Outbox()
        """Messages that no turn has received yet."""
        self._released: list[TokenDelta] = []
        self._draining = False
        self._change: RoleChange | None = None
        self._idle = True
        self._checked = True
        self._sent_seconds = self._loaded_seconds = self._clock.monotonic()
        self._load_changed = False
        """Whether more than counts of tokens and pages may have changed since the last load."""
        self._heartbeat_seconds = self._clock.heartbeat_seconds
        self._heartbeat = HeartbeatThread(
            link.send,
            self._clock.monotonic,
            self._heartbeat_seconds,
            self._clock.step_limit_seconds,
        )
        self._status = pipeline.scheduler.status()
        """Status of the last load."""
        self._known_load = self._load_now()

    def run(self, stopping: Callable[[], bool]) -> Role | None:
        """Runs steps until `stopping()` is true: it is called between steps, and once a second
        while idle. Also ends when another role can be taken, and returns that role; else returns
        None."""
        with self._heartbeat.running():
            while not stopping():
                self.step()
                if self._change and self._may_leave(self._change):
                    return self._change.role
        return None

    @property
    def busy(self) -> bool:
        """Whether other engines still need this one."""
        return self._role.busy

    def step(self) -> None:
        """One turn: receives messages, launches a batch, and finishes the oldest pending step,
        unless that step may run on beside the new one. Without work, waits up to a second for
        messages."""
        for message in self._link.poll(self._poll_timeout_seconds()):
            self._receive(message)
        self._take_adapters()
        began = self._clock.monotonic()
        self._role.receive(began)
        self._admit_compiled(began)
        self._role.plan(began)
        self._send_first_tokens(began)
        batch = self._scheduler.next_batch(began)
        if batch is not None:
            planned = self._clock.monotonic()
            capture = self._late_graphs and self._late_graphs.before(batch, began)
            launched = self._captured(capture) if capture else planned
            self._launch(batch, planned - began, launched)
        if len(self._pending) > (self._executor.ahead if batch else 0):
            self._finish(self._pending.popleft())
        elif batch is None:
            self._idle_turn(began)

    def _take_adapters(self) -> None:
        changed = self._adapters and self._adapters.take_change(self._scheduler)
        if changed:
            self._link.send(AdaptersChanged(changed))

    def _captured(self, capture: Batch) -> float:
        """Captures a CUDA graph; returns when it ended. No step runs meanwhile, so the time counts
        in none."""
        assert self._late_graphs is not None
        while self._pending:
            self._finish(self._pending.popleft())
        began = self._clock.monotonic()
        with self._heartbeat.step(self._known_load, began):
            self._executor.launch(capture)()
        ended = self._clock.monotonic()
        self._late_graphs.captured(capture, began, ended)
        return ended

    def _launch(self, batch: Batch, planned_seconds: float, began: float) -> None:
        self._idle = False
        with self._heartbeat.step(self._known_load, began):  # a device's queue may be full
            result = self._executor.launch(batch)
        self._pending.append(PendingStep(batch, result, planned_seconds, began))

    def _finish(self, pending: PendingStep) -> None:
        """Waits for the results of a step and sends them. A step that was launched ahead begins
        when the previous one ends."""
        batch, since = pending.batch, max(pending.launched_seconds, self._finished_seconds)
        with self._heartbeat.step(self._known_load, since):
            result = pending.result()
        for end in self._grammars.given_up(batch.step):  # before `process` takes their last tokens
            self._scheduler.fail(end.request_id, end.error or "", end.refusal)
        computed = self._finished_seconds = self._clock.monotonic()
        outcome = self._scheduler.process(batch, result, computed)
        finished = self._clock.monotonic()
        self._pace.stepped(batch, since, computed, outcome.accepted_tokens)
        self._role.computed(outcome.finished_chunks)
        special = self._deltas(outcome.special, computed)
        plain, late = self._outbox.charge(outcome.plain)
        if late:
            special += self._deltas(late, computed)
        load_due = self._load_due(batch, finished)
        load = self._load_now() if load_due else self._known_load
        scheduler_seconds = pending.planned_seconds + (finished - computed)
        self._send(
            StepResult(
                step=batch.step,
                mode=batch.mode.value,
                finished_seconds=computed,
                step_seconds=computed - since + scheduler_seconds,
                scheduler_seconds=scheduler_seconds,
                special=special,
                load=load,
                predicted_seconds=self._status.pace.predicted_seconds if load_due else 0.0,
                plain=plain,
            )
        )
        self._log.step(batch, self._status, finished)

    def _load_due(self, batch: Batch, now: float) -> bool:
        """Whether a finished step sends a new load."""
        rows_change = batch.added_rows or batch.dropped_rows or batch.trimmed_rows
        if self._load_changed or rows_change or batch.mode is not ForwardMode.DECODE:
            return True
        return now - self._loaded_seconds >= LOAD_SECONDS

    def _poll_timeout_seconds(self) -> float:
        """Time to wait for the first message."""
        if not self._idle:
            return 0.0
        return ROLE_LOOK_SECONDS if self._change else self._heartbeat_seconds

    def _receive(self, message: ToEngine) -> None:
        self._load_changed |= not isinstance(message, Credit)
        match message:
            case Generate():
                self._accept(message)
            case Abort():
                self._role.abort(message.request_id)
                self._grammars.abort(message.request_id)
                self._scheduler.abort(message.request_id)
            case Credit():
                if delta := self._outbox.grant(message.request_id, message.tokens):
                    self._released.append(delta)
            case HandBack():
                requests = self._role.hand_back(message, self._clock.monotonic())
                self._link.send(HandedBack(message.number, requests))
            case FlushCache():
                self._scheduler.flush_cache()
            case Drain():
                self._draining = True
                self._role.drain(LAME_DUCK_SECONDS)
            case TakeRole():
                self._begin_change(message)

    def _accept(self, message: Generate) -> None:
        if refused := self._refused(message):
            self._released.append(refused)
            return
        self._outbox.open(message.request_id, message.credit_tokens)
        if message.grammar is None:
            self._role.admit(message)
        else:
            self._grammars.add(message)

    def _refused(self, message: Generate) -> TokenDelta | None:
        """The end of a request that is refused; None if it is accepted."""
        if self._draining:
            return TokenDelta(message.request_id, (), "error", DRAINING, refusal="unavailable")
        if self._change and self._clock.monotonic() >= self._change.refuses_from:
            return TokenDelta(message.request_id, (), "error", CHANGING, refusal="unavailable")
        if error := self._role.refusal(message):  # sent before the API process knew of the role
            return TokenDelta(message.request_id, (), "error", error, refusal="unavailable")
        return None

    def _begin_change(self, message: TakeRole) -> None:
        now = self._clock.monotonic()
        self._change = RoleChange(
            message.role, now + message.lame_duck_seconds, now + message.drain_seconds
        )
        self._role.drain(message.lame_duck_seconds)

    def _may_leave(self, change: RoleChange) -> bool:
        """Whether every request begun in this role has ended. A draining engine keeps its role
        until its end."""
        now = self._clock.monotonic()
        if now >= max(change.gives_up_at, change.refuses_from):
            self._role.give_up(CHANGING)
        if self._draining or not self._idle or now < change.refuses_from:
            return False
        status = self._scheduler.status()
        requests = status.queued_requests + status.running_requests + len(self._grammars)
        return not (requests or self._role.busy or self._released)

    def _admit_compiled(self, now: float) -> None:
        """Admits requests whose grammar has been compiled; some end here."""
        released = self._grammars.released()
        self._load_changed |= bool(released.ready or released.ended)
        for message in released.ready:
            self._role.admit(message)
        ended = [end for end in released.ended if not self._role.takes(end, now)]
        self._released += [delta for end in ended if (delta := self._outbox.pass_on(end))]

    def _deltas(self, outcomes: Iterable[TokenDelta], now: float) -> list[TokenDelta]:
        """The deltas that the requests' credit allows to send; ends requests whose reader is too
        slow."""
        released, self._released = self._released, []
        for outcome in outcomes:
            if outcome.finish_reason is not None:
                self._load_changed = True
                self._grammars.ended(outcome.request_id)
            if self._role.takes(outcome, now):
                continue
            if delta := self._outbox.pass_on(outcome):
                released.append(delta)
            elif self._outbox.overdrawn(outcome.request_id):
                self._scheduler.fail(outcome.request_id, "slow reader: too many tokens wait")
        return released

    def _send_first_tokens(self, now: float) -> None:
        """Sends first tokens that another engine drew, without waiting for a step here."""
        if deltas := self._scheduler.take_first_tokens():
            self._send_outside_step(self._deltas(deltas, now), now)

    def _idle_turn(self, now: float) -> None:
        """Sends deltas that new credit released, or a heartbeat when it is due; nothing runs."""
        if not self._idle:
            self._pace.forget_decode()
            self._checked = False
        self._idle = True
        if self._released:
            self._send_outside_step(self._deltas((), now), now)
        elif now - self._sent_seconds >= self._heartbeat_seconds:
            self._check()
            self._send(Heartbeat(self._load_now()))
            waits = self._role.busy or len(self._grammars)
            if not waits and self._late_graphs and (capture := self._late_graphs.at_rest()):
                self._captured(capture)

    def _check(self) -> None:
        """Checks integrity once in each idle period. Not at its start: with a large pool the check
        takes milliseconds, and a request that arrives then would wait."""
        if not self._checked:
            self._scheduler.check_integrity()
            self._checked = True

    def _send_outside_step(self, deltas: list[TokenDelta], now: float) -> None:
        """Sends deltas that no step made."""
        mode = ForwardMode.IDLE.value
        self._send(StepResult(0, mode, now, 0.0, 0.0, deltas, self._load_now()))

    def _load_now(self) -> Load:
        """The load of this moment, which the next decode steps may repeat."""
        status = self._status = self._scheduler.status()
        now = Now(self._clock.monotonic(), self._clock.unix())
        figures = figures_from(
            status, self._grammars, self._pace, now.monotonic_seconds, self._role.queues(status)
        )
        self._known_load = load_from(
            status, self._grammars, figures, now.unix_seconds, self._role.load(status)
        )
        self._loaded_seconds, self._load_changed = now.monotonic_seconds, False
        return self._known_load

    def _send(self, message: ToApi) -> None:
        self._sent_seconds = self._clock.monotonic()
        self._link.send(message)
