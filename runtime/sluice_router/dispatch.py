"""Sends a request to one engine, or to one pair, after another until one answers.

A request is retried only before the first byte of an answer. After a connection error, 502 or 503
(draining, not ready) the engine gets no requests for a moment; after 429 (queue full), or a 503 for
want of memory or of a grammar, it does. Where the prompt's engine failed, it is that one which gets
none. Every other answer is passed on. When two attempts have failed in a way that the request may
have caused, there is no third. Knows nothing of the client's connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final

from sluice_contract.router_config import Upstream

from sluice_router.attempts import AttemptFailedError, Call, Reply, RetryReason, Sender
from sluice_router.engines import EngineState
from sluice_router.errors import EngineFailedError, NoEngineError
from sluice_router.fleet import Clock, Fleet
from sluice_router.targets import Choose, Target, TargetChoice

ENGINE_NOT_AT_FAULT: Final[frozenset[RetryReason]] = frozenset(
    {"queue_full", "uncompiled", "out_of_memory"}
)
MAY_BE_THE_REQUEST: Final[frozenset[RetryReason]] = frozenset(
    {"broken", "uncompiled", "out_of_memory", "prefill"}
)
"""Failures that the request may have caused."""
MAX_SUCH_FAILURES: Final = 2
"""After as many of them a request is not retried: it is unlikely that every engine is at fault."""


@dataclass
class _History:
    """The failed attempts of one call."""

    met: set[str] = field(default_factory=set)
    """Keys of engines that took part in one."""
    tried: set[str] = field(default_factory=set)
    """Keys of engines that failed: they are asked again only after all others."""
    failure: AttemptFailedError | None = None
    caused: int = 0
    """Failures that the request may have caused."""

    def add(self, target: Target, failure: AttemptFailedError) -> None:
        """Record one more failed attempt.

        Raises:
            RouterError: the call is not retried.
        """
        self.met.update(target.keys)
        self.tried.add(_blamed(target, failure).key)
        self.failure = failure
        self.caused += failure.reason in MAY_BE_THE_REQUEST
        if self.caused >= MAX_SUCH_FAILURES:
            raise failure.error

    def left_out(self) -> list[set[str]]:
        """Keys of engines that the next attempt is made without: the first of these that leaves
        anyone to ask."""
        if self.met == self.tried:
            return [self.met]
        others = self.met - self.tried
        # A 429 does not say which of two queues is full: perhaps that of the engine not blamed.
        either_is_full = self.failure is not None and self.failure.reason == "queue_full"
        return [self.met, self.tried, *([others] if either_is_full else [])]

    def forget_engines(self) -> None:
        """All were tried: any may be asked again."""
        self.met.clear()
        self.tried.clear()


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
        self.waiting = 0
        """Requests that wait for a usable engine."""

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncIterator[Reply]:
        """The answer of the first engine that gives one; its connection is closed on leaving.

        Raises:
            RouterError: none did; the error of the last one asked, or that there was none.
        """
        deadline = self._clock() + self._upstream.wait_for_engine_seconds
        history = _History()
        for _ in range(self._upstream.max_attempts):
            target = await self._next_target(call, history, deadline)
            if history.failure is not None:
                self._on_retry(history.failure.reason)
            with self._fleet.request(target.engine.key):
                reply = await self._attempt(target, call, history)
                if reply is None:
                    continue
                if call.body is not None:
                    call.body.release()
                try:
                    yield reply
                except EngineFailedError:
                    self._fleet.failed(target.engine.key)
                    raise
                finally:
                    reply.close()
                return
        assert history.failure is not None
        raise history.failure.error

    async def _attempt(self, target: Target, call: Call, history: _History) -> Reply | None:
        """The answer; None if there is none and another engine may be asked.

        Raises:
            RouterError: no other is to be asked.
        """
        with ExitStack() as computing:  # the prompt's engine has done its part at the first byte
            if target.prefill is not None:
                computing.enter_context(self._fleet.request(target.prefill.key))
            try:
                reply = await self._sender.send(target, call)
            except AttemptFailedError as failure:
                if failure.reason not in ENGINE_NOT_AT_FAULT:
                    self._fleet.failed(_blamed(target, failure).key)
                history.add(target, failure)
                return None
        self._fleet.answered(target.engine.key)
        if target.prefill is not None and reply.status == HTTPStatus.OK:
            self._fleet.answered(target.prefill.key)
        return reply

    async def _next_target(self, call: Call, history: _History, deadline: float) -> Target:
        failure = history.failure
        while True:
            now = self._clock()
            choice = self._choose_now(call, history, now)
            if choice.target is not None:
                return choice.target
            if failure is not None and (failure.reason in ENGINE_NOT_AT_FAULT or now >= deadline):
                raise failure.error
            if now >= deadline:
                raise NoEngineError(f"no engine can take the request: {choice.message}")
            history.forget_engines()
            self.waiting += 1
            try:
                await self._fleet.wait_for_change(deadline - now)
            finally:
                self.waiting -= 1

    def _choose_now(self, call: Call, history: _History, now: float) -> TargetChoice:
        engines, generates = self._fleet.engines(), call.body is not None
        for left_out in history.left_out():
            choice = self._choose(engines, now, left_out, generates=generates)
            if choice.target is not None:
                break
        return choice


def _blamed(target: Target, failure: AttemptFailedError) -> EngineState:
    """The engine of a failed attempt that did not do its part."""
    if failure.reason == "prefill" and target.prefill is not None:
        return target.prefill
    return target.engine
