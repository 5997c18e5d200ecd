"""The parts of a process: when one ends, all do, and its error is the one that is told."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from sluice_operator.process.tasks import until_one_ends


async def first_of(*parts: Coroutine[Any, Any, None]) -> None:
    await until_one_ends([asyncio.create_task(part) for part in parts])


class Part:
    """Runs until cancelled, and remembers that it was."""

    def __init__(self) -> None:
        self.cancelled = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


async def ends() -> None:
    await asyncio.sleep(0)


async def fails() -> None:
    await asyncio.sleep(0)
    raise ValueError("broken")


async def test_one_that_ends_ends_the_others() -> None:
    part = Part()
    await first_of(part.run(), ends())
    assert part.cancelled


async def test_the_error_of_one_is_raised_once_the_others_have_ended() -> None:
    part = Part()
    with pytest.raises(ValueError, match="broken") as caught:
        await first_of(part.run(), fails())
    assert part.cancelled
    assert caught.traceback[-1].name == "fails", "its own traceback, to find it by"


async def test_being_cancelled_cancels_all() -> None:
    part = Part()
    running = asyncio.create_task(first_of(part.run()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert part.cancelled
