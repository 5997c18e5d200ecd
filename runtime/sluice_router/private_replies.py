"""Reads replies in the private form: what is for the client, without the router's comments.

Knows no client. A reply that breaks off raises; `Progress` then tells where another goes on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from sluice_router import sse
from sluice_router.attempts import Reply
from sluice_router.errors import EngineFailedError
from sluice_router.limits import Body
from sluice_router.resume import Progress


class ErrorEventError(Exception):
    """The stream ended with an error event."""

    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body
        """Its JSON."""


async def events_of(reply: Reply, progress: Progress) -> AsyncIterator[bytes]:
    """Whole events, as they come, to `[DONE]`. Where only that is missing, it is supplied.

    Raises:
        EngineFailedError: the engine broke off.
        ErrorEventError: it ended the stream.
    """
    try:
        async for data in _data_of(reply, progress):
            yield data
    except EngineFailedError:
        if not progress.last_seen and not progress.done:
            raise
    if not progress.done:
        if not progress.last_seen:
            raise EngineFailedError(f"{reply.engine} ended the stream without [DONE]")
        progress.done = True
        yield sse.DONE


async def read_answer(reply: Reply, progress: Progress, answer: Body) -> None:
    """Hold the answer of which the stream tells at its end, in the only event with data.

    Raises:
        EngineFailedError: the engine broke off.
        ErrorEventError: it ended the stream.
        OverloadedError: there is no room for it.
    """
    events, line, chunk = sse.WholeEvents(), sse.DataLine(), reply.first
    try:
        while chunk:
            before, data, behind = line.split(chunk)
            taken = progress.take(events.feed(before + behind))
            if taken.error is not None:
                raise ErrorEventError(taken.error)
            if data:
                answer.add(data)
            chunk = await reply.read()
    except EngineFailedError:
        if not line.ended:
            raise
    if not line.ended:
        raise EngineFailedError(f"{reply.engine} ended the stream without an answer")


async def _data_of(reply: Reply, progress: Progress) -> AsyncIterator[bytes]:
    events, chunk = sse.WholeEvents(), reply.first
    while chunk:
        taken = progress.take(events.feed(chunk))
        if taken.data:
            yield taken.data
        if taken.error is not None:
            raise ErrorEventError(taken.error)
        chunk = await reply.read()
