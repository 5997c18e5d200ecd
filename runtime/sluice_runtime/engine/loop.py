"""The engine's main loop: poll messages, next batch, forward, sample, process, send.

Knows neither how messages travel nor what a model is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from sluice_runtime.engine.clock import Clock
from sluice_runtime.engine.device import Device, Landing
from sluice_runtime.engine.load import load_from
from sluice_runtime.engine.log import StepLog
from sluice_runtime.engine.outbox import Outbox
from sluice_runtime.engine.pace import Pace
from sluice_runtime.engine.pulse import Pulse
from sluice_runtime.grammar.waiting import GrammarQueue
from sluice_runtime.messages import (
    Abort,
    Credit,
    Drain,
    FlushCache,
    Generate,
    Heartbeat,
    Load,
    StepResult,
    ToApi,
    ToEngine,
    TokenDelta,
)
from sluice_runtime.scheduler.batch import Batch, ForwardMode
from sluice_runtime.scheduler.scheduler import Scheduler

GRAMMAR_SECONDS: Final = 0.005
"""How often an idle engine looks whether a grammar that a request waits for is compiled."""
DRAINING: Final = "the engine is draining and takes no new requests"


class Link(Protocol):
    """The engine's end of the transport."""

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        """Messages that are there, waiting at most so long for the first."""
        ...

    def send(self, message: ToApi) -> None:
        """Never blocks."""
        ...


@dataclass(frozen=True, slots=True)
class Flight:
    """A batch that was launched."""

    batch: Batch
    landing: Landing
    planned_seconds: float
    """What planning it took."""
    launched_seconds: float


class EngineLoop:
    """One engine process at work."""

    def __init__(
        self,
        link: Link,
        scheduler: Scheduler,
        device: Device,
        grammars: GrammarQueue,
        log: Callable[[Pace], StepLog],
        clock: Clock | None = None,
    ) -> None:
        self._link = link
        self._scheduler = scheduler
        self._device = device
        self._flying: deque[Flight] = deque()
        self._landed_seconds = 0.0
        self._grammars = grammars
        self._clock = clock or Clock()
        self._pace = Pace()
        self._log = log(self._pace)
        self._outbox = Outbox()
        self._released: list[TokenDelta] = []
        self._draining = False
        self._idle = True
        self._checked = True
        self._heard_seconds = self._clock.monotonic()
        self._heartbeat_seconds = self._clock.heartbeat_seconds
        self._pulse = Pulse(link.send, self._clock.monotonic, self._heartbeat_seconds)
        self._known_load = self._load()

    def run(self, stopping: Callable[[], bool]) -> None:
        """Steps until `stopping()`, which is asked between steps and once a second while idle."""
        with self._pulse.beating():
            while not stopping():
                self.step()

    def step(self) -> None:
        """One turn: a batch is launched and the oldest in flight lands, if it must; or a second of
        waiting."""
        for message in self._link.poll(self._patience_seconds()):
            self._receive(message)
        self._admit_compiled()
        began = self._clock.monotonic()
        batch = self._scheduler.next_batch(began)
        if batch is not None:
            self._launch(batch, began)
        if len(self._flying) > (self._device.ahead if batch else 0):
            self._land(self._flying.popleft())
        elif batch is None:
            self._rest(began)

    def _launch(self, batch: Batch, began: float) -> None:
        self._idle = False
        planned = self._clock.monotonic()
        flight = Flight(batch, self._device.launch(batch), planned - began, planned)
        self._flying.append(flight)

    def _land(self, flight: Flight) -> None:
        """Waits for the results of a step, and hands them on. A step that was launched ahead begins
        when the one before it ends."""
        batch, since = flight.batch, max(flight.launched_seconds, self._landed_seconds)
        with self._pulse.step(self._known_load, since):
            result = flight.landing()
        for end in self._grammars.given_up(batch.step):  # before their last tokens are taken in
            self._scheduler.fail(end.request_id, end.error or "", end.refusal)
        computed = self._landed_seconds = self._clock.monotonic()
        outcomes = self._scheduler.process(batch, result, computed)
        finished = self._clock.monotonic()
        self._count(batch, since, computed)
        status = self._scheduler.status()
        scheduler_seconds = flight.planned_seconds + (finished - computed)
        self._send(
            StepResult(
                step=batch.step,
                mode=batch.mode.value,
                finished_seconds=computed,
                step_seconds=computed - since + scheduler_seconds,
                scheduler_seconds=scheduler_seconds,
                deltas=self._deltas(outcomes),
                load=self._load(),
                predicted_seconds=status.pace.predicted_seconds,
            )
        )
        self._log.step(batch, status, finished)

    def _patience_seconds(self) -> float:
        """How long the first message may be waited for."""
        if not self._idle:
            return 0.0
        return GRAMMAR_SECONDS if len(self._grammars) else self._heartbeat_seconds

    def _receive(self, message: ToEngine) -> None:
        match message:
            case Generate():
                self._accept(message)
            case Abort():
                self._grammars.abort(message.request_id)
                self._scheduler.abort(message.request_id)
            case Credit():
                if delta := self._outbox.grant(message.request_id, message.tokens):
                    self._released.append(delta)
            case FlushCache():
                self._scheduler.flush_cache()
            case Drain():
                self._draining = True

    def _accept(self, message: Generate) -> None:
        if self._draining:
            refused = TokenDelta(message.request_id, (), "error", DRAINING, refusal="unavailable")
            self._released.append(refused)
            return
        self._outbox.open(message.request_id, message.credit_tokens)
        if message.grammar is None:
            self._scheduler.add(message)
        else:
            self._grammars.add(message)

    def _admit_compiled(self) -> None:
        """Requests whose grammar is compiled join the others; some end here."""
        released = self._grammars.released()
        for message in released.ready:
            self._scheduler.add(message)
        self._released += [d for end in released.ended if (d := self._outbox.pass_on(end))]

    def _deltas(self, outcomes: Iterable[TokenDelta]) -> list[TokenDelta]:
        """What the readers' credit lets through; readers that are too slow are ended."""
        released, self._released = self._released, []
        for outcome in outcomes:
            if outcome.finish_reason is not None:
                self._grammars.ended(outcome.request_id)
            if delta := self._outbox.pass_on(outcome):
                released.append(delta)
            elif self._outbox.overdrawn(outcome.request_id):
                self._scheduler.fail(outcome.request_id, "slow reader: too many tokens wait")
        return released

    def _rest(self, now: float) -> None:
        """Nothing runs: hand over what credit released, and show that the process lives."""
        if not self._idle:
            self._pace.forget_decode()
            self._checked = False
        self._idle = True
        if self._released:
            mode = ForwardMode.IDLE.value
            self._send(StepResult(0, mode, now, 0.0, 0.0, self._deltas(()), self._load()))
        elif now - self._heard_seconds >= self._heartbeat_seconds:
            self._check()
            self._send(Heartbeat(self._load()))

    def _check(self) -> None:
        """Once in each rest, and not at its beginning: with a large pool it takes milliseconds, for
        which a request that comes at once would wait."""
        if not self._checked:
            self._scheduler.check_integrity()
            self._checked = True

    def _count(self, batch: Batch, began: float, ended: float) -> None:
        if batch.extend_rows:
            self._pace.prefilled(batch.extend_tokens, ended - began)
        self._pace.decoded(len(batch.sampling_rows), began)

    def _load(self) -> Load:
        status = self._scheduler.status()
        self._known_load = load_from(status, self._grammars, self._pace, self._clock.unix())
        return self._known_load

    def _send(self, message: ToApi) -> None:
        self._heard_seconds = self._clock.monotonic()
        self._link.send(message)
