"""A TCP proxy that delays, stalls or resets what goes through it."""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.patience import PATIENCE_SECONDS


@dataclass
class Proxy:
    """Its faults can be changed at any time, from any thread."""

    target: int
    """Port, on this machine."""
    delay_seconds: float = 0.0
    """Of each piece, in either direction."""
    passes_bytes: float = math.inf
    """Connections are reset once more than so many bytes went through."""
    passed_bytes: int = 0
    port: int = 0
    stalled: threading.Event = field(default_factory=threading.Event)
    """Nothing goes through while it is set, not even an end; what came meanwhile is lost."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def resets(self) -> bool:
        """Whether the next piece resets its connection."""
        return self.passed_bytes > self.passes_bytes

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.target)
        ends = [asyncio.create_task(self._pass(reader, back))]
        ends.append(asyncio.create_task(self._pass(there, writer)))
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (writer, back):
                if self.resets:
                    each.get_extra_info("socket").setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )
                each.transport.abort()
            for end in ends:
                end.cancel()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(65536):
                if self.resets:
                    return
                await asyncio.sleep(self.delay_seconds)
                if not self.stalled.is_set():
                    self.passed_bytes += len(piece)
                    writer.write(piece)
            if self.stalled.is_set():
                await self.ended.wait()


@contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    """It listens on `port` until the block ends."""
    made, begun = Proxy(target), threading.Event()
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        thread = threading.Thread(target=runner.run, args=[_serve(made, begun)])
        thread.start()
        assert begun.wait(PATIENCE_SECONDS)
        try:
            yield made
        finally:
            loop.call_soon_threadsafe(made.ended.set)
            thread.join()


async def _serve(made: Proxy, begun: threading.Event) -> None:
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    begun.set()
    await made.ended.wait()
    server.close()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
