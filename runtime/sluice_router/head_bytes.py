"""Counts the bytes of one connection that are no body's: of heads, of trailers, and of what came
behind a request that is being answered.

A head that is complete is no longer counted here, unless its request waits behind another, or its
client has yet to read the answer or to send the body's rest. `size_of` is what it holds otherwise.

Only totals are counted, so `Connection` says what aiohttp's parser made of each piece. Knows no
budget.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

_HEAD_END: Final = b"\r\n\r\n"


class HeadBytes:
    """The bytes that one connection holds now."""

    __slots__ = ("_last", "answered", "behind", "queued", "unfinished")

    def __init__(self) -> None:
        self.queued = 0
        """Bytes of pipelined heads that are not taken yet."""
        self.answered = 0
        """Bytes of the head of an answered request whose client is waited for."""
        self.unfinished = 0
        """After those, or after the latest piece of a body: of a head, or a body's trailers."""
        self.behind = b""
        """What came while a request was answered; aiohttp has not seen it."""
        self._last = b""
        """The last bytes that aiohttp got."""

    @property
    def held(self) -> int:
        """All of them."""
        return self.queued + self.answered + self.unfinished + len(self.behind)

    def add_piece(self, data: bytes, body_bytes: int) -> None:
        """A piece that completes no request; so many bytes that aiohttp had are the body's now."""
        if body_bytes and data:
            self.unfinished = max(len(data) - body_bytes, 0)
        else:
            self.unfinished += len(data) - body_bytes

    def add_requests(
        self, data: bytes, body_bytes: int, *, is_alone: bool, is_parsed: bool, body_ended: bool
    ) -> None:
        """A piece that completes requests, but for the body of the last.

        `body_bytes`: of the body of the only one, which does not wait (`is_alone`); `is_parsed`:
        whether aiohttp parsed all of the piece; `body_ended`: whether the body of the last is here.
        """
        ends = (data or self._last).endswith(_HEAD_END)
        if is_parsed and (ends or not body_ended):
            rest = 0
        elif not data:
            rest = self.unfinished
        else:
            # Any byte may be of a further head; of a single request the end of its head is known.
            rest = max(0, len(data) - body_bytes - (self._head_in(data) if is_alone else 0))
        if not is_alone:
            self.queued += self.unfinished + len(data) - body_bytes - rest
        self.unfinished = rest

    def remember_end(self, data: bytes) -> None:
        """Remember the last bytes, by which the end of a head is known."""
        long = len(data) >= len(_HEAD_END)
        self._last = (data if long else self._last + data)[-len(_HEAD_END) :]

    def drop(self) -> None:
        """Nothing is held any more."""
        self.behind = b""
        self.queued = self.answered = self.unfinished = 0

    def _head_in(self, data: bytes) -> int:
        """How many bytes at its beginning are of the head that it ends."""
        begun = self._last[1:] if self.unfinished else b""
        return max(0, (begun + data).find(_HEAD_END) + len(_HEAD_END) - len(begun))


def size_of(request: web.BaseRequest) -> int:
    """Bytes of a request's head: of its target and its headers."""
    return len(request.raw_path) + sum(
        len(name) + len(value) for name, value in request.raw_headers
    )
