"""HTTP clients as bare sockets: what they sent, what came back, and when a connection ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

BODY = b'{"model": "m", "prompt": "x", "stream": true}'


def request_bytes(body: bytes = BODY) -> bytes:
    """A completion request."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    return head % len(body) + body


@dataclass(frozen=True)
class Answer:
    """One answer, read to its end."""

    status: int
    headers: bytes
    body: bytes

    @property
    def closes(self) -> bool:
        """Whether the server said that it closes the connection."""
        return b"\r\nconnection: close" in self.headers.lower()


class RawConnection:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, body: bytes = BODY) -> Answer:
        """Send a request and read its answer.

        Raises:
            EOFError, ConnectionError: the server closed the connection instead of answering.
        """
        self.writer.write(request_bytes(body))
        return await self.answer()

    async def answer(self) -> Answer:
        """Read one answer."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        return Answer(int(head.split(b" ", 2)[1]), head, await self._body(head.lower()))

    async def _body(self, head: bytes) -> bytes:
        if b"transfer-encoding: chunked" in head:
            return b"".join([chunk async for chunk in self.chunks()])
        _, _, rest = head.partition(b"content-length: ")
        return await self.reader.readexactly(int(rest.split(b"\r\n")[0]))

    async def chunks(self) -> AsyncIterator[bytes]:
        """The chunks of a body, as they were written."""
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()


@asynccontextmanager
async def raw_connection(url: str) -> AsyncIterator[RawConnection]:
    """A connection to the server at `url`, broken off when the block ends."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()
