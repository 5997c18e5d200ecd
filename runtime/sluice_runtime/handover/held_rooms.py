"""Rooms whose prompt is computed and whose pages are held, for two threads.

The engine's loop says from when on and until when; the connections' thread may attest it meanwhile,
so that no peer waits for the loop's step to end. Knows no page.
"""

from __future__ import annotations

import threading


class HeldRooms:
    """While a room is in here, its pages are its prompt's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: dict[int, int] = {}
        """Peer that may read each held room."""

    def hold(self, room: int, peer: int) -> None:
        """Called by the loop: all reads of this room by `peer` are valid until `let_go`."""
        with self._lock:
            self._peers[room] = peer

    def let_go(self, room: int) -> None:
        """Called by the loop before the pages may be used again; unknown rooms are ignored."""
        with self._lock:
            self._peers.pop(room, None)

    def attest(self, room: int, peer: int) -> bool:
        """Called by the connections: whether the pages were held until now; asked once for each
        room."""
        with self._lock:
            if self._peers.get(room) != peer:
                return False
            del self._peers[room]
            return True
