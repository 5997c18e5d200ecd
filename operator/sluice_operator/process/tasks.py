"""Tasks that are stopped together, signals that stop them, and threads with a loop of their own."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

logger = logging.getLogger(__name__)


async def until_one_ends(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Waits until one of `tasks` ends or fails, and stops the others; raises its error.

    Returns when all have ended. Cancelled itself, it cancels them all.
    """
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        errors = [error for task in done if (error := task.exception()) is not None]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if errors:
        raise errors[0]


def take_signals(on_signal: Callable[[], None]) -> None:
    """Calls `on_signal` on SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)


class ThreadRun:
    """One run of `main` in a thread with an event loop. The thread does not keep the process
    alive."""

    def __init__(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._name = name
        self._main = main
        self._waiting_loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[BaseException | None] = self._waiting_loop.create_future()
        """Done when it has ended: with its error, if it was one."""
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self._is_cancelled = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def cancel(self) -> None:
        """Ends the run; harmless if it has ended."""
        with self._lock:
            self._is_cancelled = True
            if self._cancel is not None:
                self._cancel()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(self._cancellable())
        except asyncio.CancelledError:
            pass
        except BaseException as raised:  # any error: somebody waits for the end
            error = raised
        with suppress(RuntimeError):  # nobody waits any more
            self._waiting_loop.call_soon_threadsafe(self.ended.set_result, error)

    async def _cancellable(self) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.create_task(self._main())
        loop.set_exception_handler(lambda _, it: logger.debug("in %s: %s", self._name, it))
        with self._lock:
            self._cancel = partial(loop.call_soon_threadsafe, task.cancel)
            if self._is_cancelled:
                task.cancel()
        try:
            await task
        finally:
            with self._lock:
                self._cancel = None
