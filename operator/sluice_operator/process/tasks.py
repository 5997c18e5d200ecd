"""Tasks that are stopped together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
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
