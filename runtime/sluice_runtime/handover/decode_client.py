"""A decode engine's connections to prefill engines: one each, with all rooms in it.

The engine's loop calls `DecodeClient`; the connections run in a separate thread. Knows rooms, but
no requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sluice_runtime.handover.hello import DecodeIdentity
from sluice_runtime.handover.loop_thread import LoopThread
from sluice_runtime.handover.messages import (
    Attested,
    Bootstrap,
    Cancel,
    ChunkRead,
    Failed,
    Received,
)
from sluice_runtime.handover.ports import DecodeEvent, RoomLost
from sluice_runtime.handover.prefill_link import ClientSettings, Greeter, PrefillLink
from sluice_runtime.wire.messages import PrefillEngine

Address = tuple[str, int, str]
"""Host, port and epoch of a prefill engine; an engine in a new epoch counts as another engine."""


class DecodeClient:
    """A `DecodePort` that connects to each prefill engine at its first room."""

    def __init__(
        self,
        us: DecodeIdentity,
        wake: Callable[[], None],
        settings: ClientSettings,
        unix_seconds: Callable[[], float],
        draw_nonce: Callable[[], str],
    ) -> None:
        """`wake`: called in another thread when there are events."""
        self._rooms: dict[int, Address] = {}
        """Open ones, by the engine's thread: events of others are not delivered."""
        self._thread: LoopThread[DecodeEvent] = LoopThread("handover-client", wake)
        greeter = Greeter(us, unix_seconds, draw_nonce)
        self._links = _Links(greeter, self._thread.put, settings)
        self._thread.start(self._links.serve)

    @property
    def failure(self) -> str | None:
        """Reason why the thread died; None while it runs. `events` raises it."""
        return self._thread.failure

    def open(self, prefill: PrefillEngine, bootstrap: Bootstrap) -> None:
        """Connects if necessary, sends a hello, and asks for the prompt. A failure comes as the
        event `RoomLost`."""
        assert bootstrap.room not in self._rooms, "a room is open once"
        self._rooms[bootstrap.room] = _address(prefill)
        self._thread.call(self._links.open, prefill, bootstrap)

    def send(self, message: ChunkRead | Received | Cancel) -> None:
        """Sends to the engine of the message's room; dropped when the connection is gone."""
        if address := self._rooms.get(message.room):
            self._thread.call(self._links.send, address, message)

    def close(self, room: int) -> None:
        """Stops the events of a room that has ended on this side."""
        if address := self._rooms.pop(room, None):
            self._thread.call(self._links.close_room, address, room)

    def events(self) -> list[DecodeEvent]:
        """Events since the last call, in order. A room is closed by `Attested`, `Failed` or
        `RoomLost`.

        Raises:
            HandoverThreadError: the thread died; the engine cannot continue.
        """
        delivered: list[DecodeEvent] = []
        for event in self._thread.events():
            if event.room not in self._rooms:
                continue
            delivered.append(event)
            if isinstance(event, RoomLost) or isinstance(event.message, Attested | Failed):
                self.close(event.room)
        return delivered

    def shut_down(self) -> None:
        """Ends all connections and the thread."""
        self._thread.close()


class _Links:
    """The connections, in the thread."""

    def __init__(
        self, greeter: Greeter, put: Callable[[DecodeEvent], None], settings: ClientSettings
    ) -> None:
        self._greeter = greeter
        self._put = put
        self._settings = settings
        self._links: dict[Address, PrefillLink] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, stop: Awaitable[None]) -> None:
        try:
            await stop
        finally:
            for link in self._links.values():
                link.end("this engine ends")
            await asyncio.gather(*self._tasks)

    def open(self, prefill: PrefillEngine, bootstrap: Bootstrap) -> None:
        address = _address(prefill)
        link = self._links.get(address)
        if link is None or link.ended:
            link = PrefillLink(prefill, self._greeter, self._put, self._settings)
            self._links[address] = link
            task = asyncio.get_running_loop().create_task(self._run(address, link))
            self._tasks.add(task)
            task.add_done_callback(self._done)
        link.open(bootstrap)

    def send(self, address: Address, message: ChunkRead | Received | Cancel) -> None:
        if link := self._links.get(address):
            link.send(message)

    def close_room(self, address: Address, room: int) -> None:
        if link := self._links.get(address):
            link.close_room(room)

    def _done(self, task: asyncio.Task[None]) -> None:
        """Removes a task that has ended. An exception of a task is a bug, and ends the thread."""
        self._tasks.discard(task)
        task.result()

    async def _run(self, address: Address, link: PrefillLink) -> None:
        await link.run()
        if self._links.get(address) is link:
            del self._links[address]


def _address(prefill: PrefillEngine) -> Address:
    return prefill.host, prefill.port, prefill.epoch
