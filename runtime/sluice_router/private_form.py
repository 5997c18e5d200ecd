"""Requests in the form that only engines of the service take: signed, with the seed, and with what
came of the answer before. Knows no engine and no connection.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from sluice_contract.wire.handover import Bound, Keys
from sluice_contract.wire.private_calls import CallHead, head_line, signed_call

from sluice_router.limits import SMALL_BYTES


@dataclass(frozen=True, slots=True)
class SignedBody:
    """A body of two parts, which are sent one after the other, and the header that signs it."""

    head: bytes
    client_body: bytes
    bound: Bound
    """To what other headers are bound, too."""
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

    keys: Keys
    unix_clock: Callable[[], float]
    draw_seed: Callable[[], int]
    """63 bits."""

    async def sign(
        self, head: CallHead, client_body: bytes, request_id: str, path: str
    ) -> SignedBody:
        """The body."""
        line = head_line(head)
        bound = Bound(path, await body_sha256(line, client_body))
        signature = signed_call(self.keys()[0], request_id, bound, self.unix_clock())
        return SignedBody(line, client_body, bound, signature)


async def body_sha256(*parts: bytes) -> str:
    """In hexadecimal, of parts that are sent one after the other; long ones are hashed in a
    thread."""
    if sum(map(len, parts)) <= SMALL_BYTES:
        return _sha256(parts)
    return await asyncio.to_thread(_sha256, parts)


def _sha256(parts: Sequence[bytes]) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()
