"""Properties of a room that both engines of a hand-over share: the hash of its prompt, its
deadlines, and whether its pages are held. Knows no page and no socket."""

from __future__ import annotations

import hashlib
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from sluice_runtime.wire.messages import Generate


@dataclass(frozen=True, slots=True)
class HandoverLimits:
    """Deadlines, in seconds."""

    total_seconds: float = 300.0
    """Longest time from a request's arrival until it decodes; also the longest that a prefill
    engine works for a room."""
    hold_seconds: float = 60.0
    """Longest time that a prefill engine holds the pages of a computed prompt."""
    transfer_seconds: float = 60.0
    """Longest time from the first token until all pages are read."""
    attest_seconds: float = 15.0
    """Longest time from the last page read until the prefill engine attests that it held all of
    them."""
    check_seconds: float = 0.5
    """Interval at which deadlines are checked."""


class PromptHash:
    """Hash of 128 bits over tokens that arrive in chunks; each token is four bytes, in the
    machine's order."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)

    def add(self, tokens: bytes) -> None:
        self._digest.update(tokens)

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def prompt_hash(token_ids: Sequence[int]) -> str:
    """`PromptHash` of all tokens of a prompt, in hexadecimal."""
    whole = PromptHash()
    whole.add(struct.pack(f"{len(token_ids)}i", *token_ids))
    return whole.hexdigest()


class HeldRooms:
    """Rooms whose prompt is computed and whose pages are held. The engine's loop begins and ends
    each hold. In between the connections' thread may attest it, so that no peer waits for a step to
    end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._peers: dict[int, int] = {}
        """Peer that may read each held room."""

    def hold(self, room: int, peer: int) -> None:
        """Called by the loop: all reads of this room by `peer` are valid until `release_hold`."""
        with self._lock:
            self._peers[room] = peer

    def release_hold(self, room: int) -> None:
        """Called by the loop before the pages may be used again; unknown rooms are ignored."""
        with self._lock:
            self._peers.pop(room, None)

    def attest(self, room: int, peer: int) -> bool:
        """Called by the connections: whether the pages were held until now. Only the first call for
        a room can return True."""
        with self._lock:
            if self._peers.get(room) != peer:
                return False
            del self._peers[room]
            return True


def is_probe(message: Generate) -> bool:
    """Whether a request is a health probe, as from /health_generate: one prompt token, one answer
    token."""
    return len(message.prompt_ids) == 1 and message.max_tokens == 1 and message.grammar is None
