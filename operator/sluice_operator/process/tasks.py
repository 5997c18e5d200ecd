"""Tasks that are stopped together, and signals that stop them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Collection
from typing import Any


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
