"""A thread with an event loop, and how the engine's loop notices that it died.

An expected error ends at most one connection. Any other error is a bug: it ends the thread, and
`events` raises it, because a thread that died unnoticed would leave requests waiting for ever.
Knows neither sockets nor messages.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, Unpack

_log = logging.getLogger(__name__)

E = TypeVar("E")
Args = TypeVarTuple("Args")
_JOIN_SECONDS: Final = 10.0


class HandoverThreadError(Exception):
    """The thread of the control connections died. The engine cannot continue."""


class LoopThread(Generic[E]):
    """Runs `serve` until `close`; its values reach the engine's thread by `put` and `events`."""

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._arrived: deque[E] = deque()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._went_wrong)
        self._stop: asyncio.Future[None] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.failure: str | None = None
        """Why the thread died; None while it is well."""

    def start(self, serve: Callable[[Awaitable[None]], Awaitable[None]]) -> None:
        """Starts the thread with `serve`, which awaits its argument, then ends its connections and
        returns."""
        self._serve = serve
        self._thread.start()

    def call(self, callback: Callable[[Unpack[Args]], object], *args: *Args) -> None:
        """Runs `callback` in the thread soon, in the order of the calls; dropped if the thread has
        ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def put(self, event: E) -> None:
        """Called in the thread: adds an event for `events`."""
        self._arrived.append(event)
        self._wake()

    def events(self) -> list[E]:
        """Events that were put since the last call.

        Raises:
            HandoverThreadError: the thread died.
        """
        if self.failure is not None:
            raise HandoverThreadError(f"{self._thread.name}: {self.failure}")
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def close(self) -> None:
        """Ends the thread; after this no event is put, and `wake` is not called."""
        self.call(self._stop_serving)
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._main())
        except BaseException as error:
            _log.exception("%s died", self._thread.name)
            self._fail(error)

    async def _main(self) -> None:
        await self._serve(self._stop)
        if not self._stop.done():
            raise RuntimeError("it ended by itself")

    def _stop_serving(self) -> None:
        if not self._stop.done():
            self._stop.set_result(None)

    def _fail(self, error: BaseException) -> None:
        """Records the failure before the connections end, so that the engine ignores events that
        result from it."""
        if self.failure is not None:
            return
        self.failure = f"{type(error).__name__}: {error}"
        if not self._stop.done():
            self._stop.set_exception(error)
        self._wake()

    def _went_wrong(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Logs an error of a connection, or a lack of file descriptors; any other error ends the
        thread."""
        error = context.get("exception")
        if "transport" in context or isinstance(error, OSError):
            _log.error("%s: %s", self._thread.name, context["message"], exc_info=error)
        else:
            self._fail(error or RuntimeError(context["message"]))
