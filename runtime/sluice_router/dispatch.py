"""Sends a request to one engine, or to one pair, after another until one answers.

A request is retried before the first byte of an answer; after it, an answer in the private form is
resumed, with the same history. After a connection error, 502 or 503 (draining, not ready) the
engine gets no requests for a moment; after 429 (queue full), or a 503 for want of memory or of a
grammar, it does. Where the prompt's engine failed, it is that one which gets none. An engine that
refuses our signature gets the request as the client sent it. Requests for an adapter go to engines
that report it. Every other answer is passed on. When two attempts have failed in a way that the
request may have caused, there is no third. Before an answer has begun, retries come out of a budget
that all requests share, and after 429 they go only where the last report says that there is room.
Knows nothing of the client's connection.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Final

from sluice_contract.cluster.labels import Role
from sluice_contract.config.router import Upstream
from sluice_contract.http_errors import REQUEST_ID_HEADER

from sluice_router.attempts import Call, Reply, Sender
from sluice_router.engines import Clock, Fleet, has_room, with_adapter
from sluice_router.errors import (
    AttemptFailedError,
    EngineFailedError,
    NoEngineError,
    RetryReason,
    RouterError,
)
from sluice_router.history import ENGINE_NOT_AT_FAULT, History, RetryBudget, blamed
from sluice_router.targets import Choose, Picks, Target, TargetChoice

logger: Final = logging.getLogger("sluice.router")


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

    @asynccontextmanager
    async def open(self, call: Call, history: History) -> AsyncIterator[Reply]:
        """The answer of the first engine that gives one; its connection is closed on leaving.

        Leaving it with an AttemptFailedError adds that to the history; `open` may be called again.

        Raises:
            RouterError: none did; the error of the last one asked, or that there was none.
        """
        deadline = self._clock() + self._upstream.wait_for_engine_seconds
        before = history.failure
        if before is None:
            self._retries.request()
        left = self._upstream.max_attempts
        while left:
            retries = history.failure is not None and not _has_begun(call)
            if retries and self._retries.empty:
                break
            target = await self._next_target(call, history, deadline)
            if retries:
                self._retries.retry()
            if history.failure is not None and history.failure is not before:
                self._on_retry(history.failure.reason)
            with self._fleet.request(target.engine.key):
                reply = await self._attempt(target, call, history)
                if reply is None:
                    left -= not self._waits_for_room(call, history, deadline)
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

    async def _attempt(self, target: Target, call: Call, history: History) -> Reply | None:
        """The answer; None if there is none and another engine may be asked.

        Raises:
            RouterError: no other is to be asked.
        """
        with ExitStack() as computing:  # the prompt's engine has done its part at the first byte
            if target.prefill is not None:
                computing.enter_context(self._fleet.request(target.prefill.key))
            try:
                reply = await self._send(target, call)
            except AttemptFailedError as failure:
                self._failed(target, failure, history)
                return None
        self._fleet.answered(target.engine.key)
        if target.prefill is not None and reply.status == HTTPStatus.OK:
            self._fleet.answered(target.prefill.key)
        return reply

    async def _send(self, target: Target, call: Call) -> Reply:
        """The answer, of a private call or of the client's: an engine with another key, or another
        time, still serves.

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

    def _failed(self, target: Target, failure: AttemptFailedError, history: History) -> None:
        if failure.reason not in ENGINE_NOT_AT_FAULT:
            self._fleet.failed(blamed(target, failure).key)
        history.add(target, failure)

    async def _next_target(self, call: Call, history: History, deadline: float) -> Target:
        failure = history.failure
        while True:
            now = self._clock()
            choice = self._choose_now(call, history, now)
            if choice.target is not None:
                self.picks.add(call.headers[REQUEST_ID_HEADER], choice)
                return choice.target
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

    def _waits_for_room(self, call: Call, history: History, deadline: float) -> bool:
        """Whether a full queue ends nothing yet: what has begun cannot be asked for again."""
        return history.queue_is_full and _has_begun(call) and self._clock() < deadline

    def _choose_now(self, call: Call, history: History, now: float) -> TargetChoice:
        engines, generates = self._fleet.engines(), call.body is not None
        if call.progress is not None and (began := call.progress.began) is not None:
            engines = tuple(one for one in engines if one.ends_answers_of(began.answer_identity))
            if all(one.endpoint.role is Role.PREFILL for one in engines):
                message = "no engine serves the model, as it was served when the answer began"
                return TargetChoice(None, "NoneGoesOn", message)
        if call.model is not None and engines:
            engines = tuple(with_adapter(engines, call.model))
            if not engines:
                message = f"adapter {call.model}: prefill and decode engines have none alike"
                return TargetChoice(None, "NoneMatches", message)
        full = set[str]()
        if history.queue_is_full and not _has_begun(call):
            full.update(one.key for one in engines if not has_room(one))
        for left_out in history.left_out():
            choice = self._choose(
                engines, now, left_out | full, generates=generates, affinity=call.affinity
            )
            if choice.target is not None:
                break
        return choice


def _has_begun(call: Call) -> bool:
    """Whether some of its answer was passed on: what follows is a resume."""
    return call.progress is not None and call.progress.begun


def _last_error(history: History, choice: TargetChoice) -> RouterError:
    """Why nobody is asked after the last failure."""
    if choice.reason != "NoneGoesOn":
        return history.error
    return NoEngineError(f"the answer broke off, and {choice.message}")
