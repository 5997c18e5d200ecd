"""Forwards a request until its answer is whole: one engine, or one pair, after another.

`ResumingForwarder` relays the answer; `Dispatcher` finds the engine that gives it; `RequestHistory`
has the failed attempts of one call.

Before the first byte of an answer a request is retried; after it, the answer to a private call is
resumed by another engine, with the same history. An engine gets no requests for a moment after a
connection error, 502 or 503 (draining, not ready). After 429 (queue full), or a 503 for want of
memory or of a grammar, it still gets requests. Where the prompt's engine failed, only that one gets
none. An engine that refuses our signature gets the request as the client sent it. Requests for an
adapter go to engines that report it. Every other answer is passed on.

After two failed attempts that the request may have caused, there is no third. Before an answer has
begun, retries come out of a budget that all requests share, and after 429 they go only to engines
whose last report says that they have capacity. A queue that is full for one tenant is the answer.
A request that an engine has handed back is no retry, and no failure. During a canary, a retry goes
to the former revision.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Final

from aiohttp import web
from sluice_contract.cluster.labels import Role
from sluice_contract.config.router import Upstream
from sluice_contract.http_heads import REQUEST_ID_HEADER

from sluice_router import canary
from sluice_router.attempts import Call, Reply, Sender
from sluice_router.engines import Clock, EngineState, Fleet, has_capacity, with_adapter
from sluice_router.errors import (
    ENGINE_NOT_AT_FAULT,
    MAY_BE_THE_REQUEST,
    PREFILL_AT_FAULT,
    AttemptFailedError,
    EngineFailedError,
    NoEngineError,
    RetryReason,
    RouterError,
    soonest_retry,
)
from sluice_router.hand_back import MAX_MOVES, Unanswered, UnansweredRequests
from sluice_router.relay import Relay
from sluice_router.retry_budget import RetryBudget
from sluice_router.targets import Choose, Picks, Target, TargetChoice
from sluice_router.telemetry import Telemetry
from sluice_router.trials import Trial, Trials

logger: Final = logging.getLogger("sluice.router")

NO_REVISION_KNOWN: Final = TargetChoice(
    None, "NoneReady", "during a canary: no engine has reported its revision yet"
)
MAX_SUCH_FAILURES: Final = 2
"""Number of such failures after which a request is not retried: it is unlikely that every engine is
at fault."""


class ResumingForwarder:
    """Forwards requests; where an engine breaks off, another one continues the answer."""

    def __init__(self, dispatcher: Dispatcher, telemetry: Telemetry) -> None:
        self._dispatcher = dispatcher
        self._telemetry = telemetry

    async def run(
        self, call: Call, relay: Relay, on_reply: Callable[[Reply], None]
    ) -> web.StreamResponse:
        """Relay the answer; `on_reply` is called with each reply that has a part in it.

        Raises:
            RouterError: it is not whole, and no other engine can continue it.
        """
        history, interruption = RequestHistory(), None
        while True:
            try:
                async with self._dispatcher.open(call, history) as reply:
                    if interruption is not None:
                        self._resumed(call, interruption, reply)
                    on_reply(reply)
                    self._release(call, reply)
                    return await relay.run(reply, call.progress)
            except AttemptFailedError as failure:
                interruption = failure
                if call.body is not None:
                    call.body.pin()
            except RouterError:
                if interruption is not None:
                    self._telemetry.resume_failure()
                raise

    def _release(self, call: Call, reply: Reply) -> None:
        """Release the body where no other engine can need it; else keep it as evictable."""
        if call.body is None:
            return
        if not reply.private or call.progress is None:
            call.body.release()
            return
        progress = call.progress

        def forget_progress() -> None:
            progress.forget()
            self._telemetry.resume_forgone()

        call.body.make_evictable(forget_progress)

    def _resumed(self, call: Call, interruption: AttemptFailedError, reply: Reply) -> None:
        self._telemetry.resumed(interruption.reason)
        logger.warning(
            "%s: %s goes on with the answer after: %s (%s)",
            call.headers[REQUEST_ID_HEADER],
            reply.target.name,
            interruption.error,
            interruption.reason,
        )


class Dispatcher:
    """Finds an engine, or a pair, for a call."""

    def __init__(
        self,
        fleet: Fleet,
        sender: Sender,
        upstream: Upstream,
        choose: Choose,
        clock: Clock,
        on_retry: Callable[[RetryReason], None],
    ) -> None:
        self._fleet = fleet
        self._sender = sender
        self._upstream = upstream
        self._choose = choose
        self._clock = clock
        self._on_retry = on_retry
        self._retries = RetryBudget(clock)
        self.waiting = 0
        """Requests that wait for a usable engine."""
        self.picks = Picks()
        self.unanswered = UnansweredRequests()
        self.trials = Trials(clock, fleet)

    @asynccontextmanager
    async def open(self, call: Call, history: RequestHistory) -> AsyncIterator[Reply]:
        """The answer of the first engine that gives one; its connection is closed on leaving.

        Leaving it with an AttemptFailedError adds that to the history; `open` may be called again.

        Raises:
            RouterError: none did: the error of the last engine, or that there is no engine.
        """
        deadline = self._clock() + self._upstream.wait_for_engine_seconds
        before = history.failure
        if before is None:
            self._retries.request()
        attempts_left = self._upstream.max_attempts
        while attempts_left:
            target = await self._target(call, history, deadline)
            if target is None:
                break
            if history.failure is not None and history.failure is not before:
                self._on_retry(history.failure.reason)
            trial = self._trial(target, call, history)
            with self._fleet.request(target.engine.key), trial or nullcontext():
                reply = await self._attempt(target, call, history)
                if trial is not None:
                    trial.began(reply, history.failure)
                if reply is None:
                    if history.is_handed_back:
                        deadline = self._clock() + self._upstream.wait_for_engine_seconds
                        continue
                    attempts_left -= not self._waits_for_room(call, history, deadline)
                    continue
                try:
                    yield reply
                except EngineFailedError:
                    self._fleet.failed(target.engine.key)
                    raise
                except AttemptFailedError as failure:
                    self._failed(target, failure, history)
                    raise
                finally:
                    reply.close()
                return
        raise history.error

    def _trial(self, target: Target, call: Call, history: RequestHistory) -> Trial | None:
        """The attempt's trial in a canary, which has only first attempts of prompts."""
        shares, key = self._fleet.canary, history.canary_key
        if not shares or key is None or history.failures or call.body is None or not call.generates:
            return None
        if history.first_sent_seconds is None:
            history.first_sent_seconds = self._clock()
        return self.trials.begin(shares, target, key, history.first_sent_seconds, call.limit)

    async def _attempt(self, target: Target, call: Call, history: RequestHistory) -> Reply | None:
        """The answer; None if the attempt failed and another engine may be asked.

        Raises:
            RouterError: it failed, and no other engine is to be asked.
        """
        with ExitStack() as computing:  # the prompt's engine has done its part at the first byte
            if target.prefill is not None:
                computing.enter_context(self._fleet.request(target.prefill.key))
            sent = self._unanswered(target, call)
            computing.enter_context(self.unanswered.sent(sent))
            try:
                reply = await self._send(target, call)
            except AttemptFailedError as failure:
                if failure.reason == "handed_back" and self._may_move(call, sent):
                    history.handed_back(sent, failure)
                    return None
                if failure.reason == "handed_back":  # though it was not requested
                    failure = AttemptFailedError("unavailable", failure.error)
                self._failed(target, failure, history)
                return None
        self._fleet.answered(target.engine.key)
        if target.prefill is not None and reply.status == HTTPStatus.OK:
            self._fleet.answered(target.prefill.key)
        return reply

    def _unanswered(self, target: Target, call: Call) -> Unanswered:
        # Only private calls may be given back, and none of an answer that has begun.
        movable = call.progress is not None and not _has_begun(call)
        movable = movable and target.engine.takes_private_calls
        moved = call.progress.moved if call.progress is not None and movable else MAX_MOVES
        id_, now = call.headers[REQUEST_ID_HEADER], self._clock()
        return Unanswered(id_, target, now, moved, call.model)

    @staticmethod
    def _may_move(call: Call, sent: Unanswered) -> bool:
        """Counts one move; False for a hand-back that was not requested."""
        if call.progress is None or call.progress.moved >= MAX_MOVES or sent.waits_for is None:
            return False
        call.progress.moved += 1
        # Decode engines hand back before the engine of the prompt knows of it.
        call.progress.prompt_counted |= sent.waits_for is not Role.DECODE
        return True

    async def _send(self, target: Target, call: Call) -> Reply:
        """The answer to the private call, or else to the request as the client sent it: an engine
        with another key or a wrong clock still serves.

        Raises:
            AttemptFailedError: there is none.
        """
        try:
            return await self._sender.send(target, call)
        except AttemptFailedError as failure:
            if failure.reason != "signature":
                raise
            self._fleet.refused_private_call(target.engine.key)
            logger.warning(
                "engine %s refuses the router's signature: it has another key, or its clock is"
                " wrong; its answers are not resumed",
                target.engine.endpoint.name,
            )
            if call.progress is None or _has_begun(call):
                raise
            self._on_retry(failure.reason)
        now_public = replace(target.engine, refused_private_seconds=self._clock())
        return await self._sender.send(replace(target, engine=now_public), call)

    def _failed(self, target: Target, failure: AttemptFailedError, history: RequestHistory) -> None:
        if failure.reason not in ENGINE_NOT_AT_FAULT:
            self._fleet.failed(blamed(target, failure).key)
        history.add(target, failure)

    async def _target(self, call: Call, history: RequestHistory, deadline: float) -> Target | None:
        """Next target; None if no retry is left. A retry that finds no engine is given back."""
        bucket = None
        retries = history.failure is not None and not history.is_handed_back
        if retries and history.failure is not None and not _has_begun(call):
            bucket = self._retries.take(history.failure.reason)
            if bucket is None:
                return None
        try:
            return await self._next_target(call, history, deadline)
        except BaseException:
            if bucket is not None:
                bucket.add(1)
            raise

    async def _next_target(self, call: Call, history: RequestHistory, deadline: float) -> Target:
        failure = None if history.is_handed_back else history.failure
        while True:
            now = self._clock()
            choice = self._choose_now(call, history, now)
            if choice.target is not None:
                self.picks.add(call.headers[REQUEST_ID_HEADER], choice)
                return choice.target
            if history.is_handed_back and history.tried:
                history.forget_engines()  # the room has gone
                continue
            passes = failure is not None and failure.reason in ENGINE_NOT_AT_FAULT
            passes = passes and not self._waits_for_room(call, history, deadline)
            if failure is not None and (passes or now >= deadline):
                raise _last_error(history, choice)
            if now >= deadline:
                raise NoEngineError(f"no engine can take the request: {choice.message}")
            history.forget_engines()
            self.waiting += 1
            try:
                await self._fleet.wait_for_change(deadline - now)
            finally:
                self.waiting -= 1

    def _waits_for_room(self, call: Call, history: RequestHistory, deadline: float) -> bool:
        """Whether to wait after 429: an answer that has begun cannot be requested again."""
        return history.queue_is_full and _has_begun(call) and self._clock() < deadline

    def _choose_now(self, call: Call, history: RequestHistory, now: float) -> TargetChoice:
        engines, generates = self._fleet.engines(), call.body is not None and call.generates
        if call.progress is not None and (start := call.progress.start) is not None:
            identity = start.answer_identity
            engines = tuple(engine for engine in engines if engine.can_resume(identity))
            if all(engine.role is Role.PREFILL for engine in engines):
                message = "no engine serves the model, as it was served when the answer began"
                return TargetChoice(None, "NoneGoesOn", message)
        if call.model is not None and engines:
            engines = tuple(with_adapter(engines, call.model))
            if not engines:
                message = f"adapter {call.model}: prefill and decode engines have none alike"
                return TargetChoice(None, "NoneMatches", message)
        full = set[str]()
        if history.queue_is_full and not _has_begun(call):
            full.update(engine.key for engine in engines if not has_capacity(engine))
        choice = NO_REVISION_KNOWN
        for group in self._groups(call, history, engines):
            for excluded in history.exclusions():
                choice = self._choose(
                    group, now, excluded | full, generates=generates, affinity=call.affinity
                )
                if choice.target is not None:
                    return choice
        return choice

    def _groups(
        self, call: Call, history: RequestHistory, engines: tuple[EngineState, ...]
    ) -> Sequence[Sequence[EngineState]]:
        """Engines that may be asked, in groups of which the first with a usable engine is used: all
        in one, or during a canary one of each side."""
        shares = self._fleet.canary
        if not shares or not engines:
            return (engines,)
        if history.failure is not None and not history.is_handed_back:
            return canary.in_order(shares, engines, new_first=False)
        if history.canary_key is None and canary.percent_of(shares):
            history.canary_key = canary.key_of(call)
        key = history.canary_key
        is_new = key is not None and canary.goes_to_new(shares, key)
        return canary.in_order(shares, engines, new_first=is_new)


def _has_begun(call: Call) -> bool:
    """Whether some of its answer was passed on, so that the next attempt is a resume."""
    return call.progress is not None and call.progress.begun


def _last_error(history: RequestHistory, choice: TargetChoice) -> RouterError:
    """Why no engine is asked after the last failure."""
    if choice.reason != "NoneGoesOn":
        return history.error
    return NoEngineError(f"the answer broke off, and {choice.message}")


@dataclass
class RequestHistory:
    """The failed attempts of one call."""

    met: set[str] = field(default_factory=set)
    """Keys of engines that took part in a failed attempt."""
    tried: set[str] = field(default_factory=set)
    """Keys of engines that failed: they are asked again only after all others."""
    failure: AttemptFailedError | None = None
    """Last failure."""
    failures: int = 0
    """Failed attempts, without those that were handed back."""
    full: list[RouterError] = field(default_factory=list)
    """Errors of engines with a full queue."""
    caused: int = 0
    """Failures that the request may have caused."""
    canary_key: canary.CanaryKey | None = None
    """The call's key in a canary, once it is computed."""
    first_sent_seconds: float | None = None
    """When its first attempt in a canary began."""

    def add(self, target: Target, failure: AttemptFailedError) -> None:
        """Record one more failed attempt.

        Raises:
            RouterError: the call is not retried.
        """
        self.met.update(target.keys)
        self.tried.add(blamed(target, failure).key)
        self.failure = failure
        self.failures += 1
        if failure.reason == "queue_full":
            self.full.append(failure.error)
        self.caused += failure.reason in MAY_BE_THE_REQUEST
        if self.caused >= MAX_SUCH_FAILURES:
            raise failure.error

    def handed_back(self, sent: Unanswered, failure: AttemptFailedError) -> None:
        """Record that an engine gave the request back: it goes to another, the other half of a
        pair stays."""
        target, is_prefill = sent.target, sent.waits_for is Role.PREFILL
        engine = target.prefill if is_prefill and target.prefill else target.engine
        self.met.add(engine.key)
        self.tried.add(engine.key)
        self.failure = failure

    @property
    def is_handed_back(self) -> bool:
        """Whether the last engine gave the request back."""
        return self.failure is not None and self.failure.reason == "handed_back"

    @property
    def queue_is_full(self) -> bool:
        """Whether the last failure was a full queue."""
        return self.failure is not None and self.failure.reason == "queue_full"

    @property
    def error(self) -> RouterError:
        """The answer for the client when no other engine is asked."""
        assert self.failure is not None, "an attempt failed"
        return soonest_retry(self.full) if self.queue_is_full else self.failure.error

    def exclusions(self) -> list[set[str]]:
        """Sets of keys: the next attempt excludes the first set that leaves an engine to ask."""
        if self.met == self.tried:
            return [self.met]
        others = self.met - self.tried
        # A 429 does not say which of two queues is full: perhaps that of the engine not blamed.
        return [self.met, self.tried, *([others] if self.queue_is_full else [])]

    def forget_engines(self) -> None:
        """All were tried: any engine may be asked again."""
        self.met.clear()
        self.tried.clear()


def blamed(target: Target, failure: AttemptFailedError) -> EngineState:
    """The engine of a failed attempt that did not do its part."""
    if failure.reason in PREFILL_AT_FAULT and target.prefill is not None:
        return target.prefill
    return target.engine
