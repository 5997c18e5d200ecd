"""Requests in the form that only engines of the service take: signed, with the seed, and with what
came of the answer before. Knows no engine and no connection.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from sluice_contract.private_calls import CallHead, head_line, signed_digest

from sluice_router.memory import SMALL_BYTES


@dataclass(frozen=True, slots=True)
class SignedBody:
    """A body of two parts, which are sent one after the other, and the header that signs it."""

    head: bytes
    client_body: bytes
    signature: str

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self.head) + len(self.client_body)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Small enough that other requests run between; no copy of the whole is made."""
        yield self.head
        for start in range(0, len(self.client_body), SMALL_BYTES):
            yield self.client_body[start : start + SMALL_BYTES]


@dataclass(frozen=True, slots=True)
class PrivateForm:
    """Signs with the service's key."""

    key: bytes
    unix_clock: Callable[[], float]
    draw_seed: Callable[[], int]
    """63 bits."""

    async def sign(self, head: CallHead, client_body: bytes, request_id: str) -> SignedBody:
        """The body; a long one is hashed in a thread."""
        line = head_line(head)
        if len(line) + len(client_body) <= SMALL_BYTES:
            digest = _digest(line, client_body)
        else:
            digest = await asyncio.to_thread(_digest, line, client_body)
        signature = signed_digest(self.key, request_id, digest, self.unix_clock())
        return SignedBody(line, client_body, signature)


def _digest(head: bytes, client_body: bytes) -> str:
    hashed = hashlib.sha256(head)
    hashed.update(client_body)
    return hashed.hexdigest()
