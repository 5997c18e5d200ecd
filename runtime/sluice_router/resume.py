"""How another engine can continue an answer: private calls, which only engines of the service
take, and what came of the answer so far.

A private call is signed, and carries the seed and what came of the answer before. The reply is a
stream of events with comments for the router: `Progress` reads the comments and takes them out. It
holds token ids in four bytes each, and scores as JSON.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
from sluice_contract.wire.handover import Bound, Keys
from sluice_contract.wire.private_calls import (
    AnswerStart,
    CallHead,
    ChoiceSoFar,
    EventComment,
    Resume,
    Score,
    head_line,
    read_comment,
    signed_call,
)

from sluice_router import sse
from sluice_router.byte_budget import SMALL_BYTES

_DATA: Final = b"data: "
_ID_BYTES: Final = 4
_CHOICE_BYTES: Final = 256
"""Bytes counted for a choice of an answer before its first id."""
_SCORES: Final = msgspec.json.Decoder(list[Score])


@dataclass(frozen=True, slots=True)
class SignedBody:
    """A body of two parts, which are sent one after the other, and the header that signs it."""

    head: bytes
    client_body: bytes
    bound: Bound
    """The path and body that the request's other signed headers are bound to, too."""
    signature: str

    @property
    def size(self) -> int:
        """Size of both parts in bytes."""
        return len(self.head) + len(self.client_body)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Pieces of the body, small enough that other requests run between; no copy of the whole is
        made."""
        yield self.head
        for start in range(0, len(self.client_body), SMALL_BYTES):
            yield self.client_body[start : start + SMALL_BYTES]


@dataclass(frozen=True, slots=True)
class PrivateCallSigner:
    """Makes private calls: signed with the service's key, each answer with a seed of its own."""

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
    """SHA-256 in hexadecimal of parts that are sent one after the other; long ones are hashed in a
    thread."""
    if sum(map(len, parts)) <= SMALL_BYTES:
        return _sha256(parts)
    return await asyncio.to_thread(_sha256, parts)


def _sha256(parts: Sequence[bytes]) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


@dataclass(slots=True)
class _Choice:
    ids: array[int] = field(default_factory=lambda: array("I"))
    scores: bytearray = field(default_factory=bytearray)
    """JSON of each, with a comma behind it."""
    cached: int = 0
    finished: bool = False

    def so_far(self) -> ChoiceSoFar:
        scores = _SCORES.decode(b"[" + self.scores[:-1] + b"]")
        return ChoiceSoFar(self.ids.tolist(), scores, self.cached, self.finished)


@dataclass(frozen=True, slots=True)
class EventsRead:
    """Content of some events other than their comments."""

    pieces: list[memoryview]
    """Whole events for the client, as parts of what was read."""
    error: bytes | None = None
    """JSON of the error event that ended the stream; it is not in `pieces`."""

    @property
    def data(self) -> bytes:
        """The pieces in one."""
        return b"".join(self.pieces)


class Progress:
    """One answer, over all the engines that work on it."""

    def __init__(
        self,
        seed: int,
        *,
        streams: bool,
        charge: Callable[[int], None],
        waited_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`streams`: whether the client asked for events. `charge` is called with the number of
        bytes that are held in addition; it may call `forget`. `waited_seconds`: since the request
        came."""
        self.streams = streams
        self.forgotten = False
        """Whether the answer can no longer be resumed."""
        self.last_seen = False
        """Whether everything came but `[DONE]`, on routes whose streams end with it."""
        self.done = False
        """Whether the stream's end came."""
        self.moved = 0
        """Number of times that engines have handed the request back."""
        self.prompt_counted = False
        """Whether an engine that handed the request back has counted its prompt."""
        self._seed = seed
        self._waited_seconds = waited_seconds
        self._charge = charge
        self._start: AnswerStart | None = None
        self._choices: list[_Choice] = []

    @property
    def begun(self) -> bool:
        """Whether some of the answer was passed on: only a resume may follow it."""
        return self._start is not None

    @property
    def start(self) -> AnswerStart | None:
        """The engine's description of the answer; None before it has begun."""
        return self._start

    def forget(self) -> None:
        """Hold nothing any more."""
        self.forgotten = True
        self._choices = []

    def head(self) -> CallHead:
        """The first line of the private call to the next engine."""
        if self._start is not None:
            return CallHead(self._seed, Resume(self._start, [c.so_far() for c in self._choices]))
        waited_seconds = self._waited_seconds()
        return CallHead(self._seed, None, waited_seconds, self.moved, self.prompt_counted)

    def read(self, events: bytes | bytearray) -> EventsRead:
        """Read whole events; they count as passed on, except for an error that ends them.

        An event that cannot be read passes, and nothing can be resumed after it.
        """
        view, pieces, begin = memoryview(events), list[memoryview](), 0
        while (last := events.find(sse.END, begin)) >= 0:
            start, end = self._after_comments(events, begin, last), last + len(sse.END)
            begin = end
            if start >= last:
                continue
            if events.startswith(sse.ERROR_START, start):
                return EventsRead(pieces, bytes(view[start + len(_DATA) : last]))
            if not self.begun:
                self.forget()
            pieces.append(view[start:end])
        self.done = self.done or events.endswith(sse.ENDS)
        return EventsRead(pieces)

    def _after_comments(self, events: bytes | bytearray, begin: int, end: int) -> int:
        """Read the comments of one event; where its data begins."""
        while events.startswith(b":", begin, end):
            newline = events.find(b"\n", begin, end)
            line_end = end if newline < 0 else newline
            line = bytes(events[begin:line_end])
            if not self.forgotten or b'"last"' in line:
                self._read_comment(line)
            begin = min(line_end + 1, end)
        return begin

    def _read_comment(self, line: bytes) -> None:
        try:
            comment = read_comment(line)
            self.last_seen = self.last_seen or comment.last
            if not self.forgotten:
                self._add(comment)
        except (ValueError, IndexError, OverflowError):  # of an engine that counts otherwise
            self.forget()

    def _add(self, comment: EventComment) -> None:
        count = 0
        if comment.start is not None and self._start is None:
            self._start = comment.start
            self._choices = [_Choice() for _ in comment.start.max_tokens]
            count += len(self._choices) * _CHOICE_BYTES
            if not comment.start.answer_identity:  # no engine could continue it
                self.forget()
                return
        for index, ids in comment.c:
            self._choices[index].ids.extend(ids)
            count += len(ids) * _ID_BYTES
        for index, scores in comment.scores:
            text = b"".join(msgspec.json.encode(score) + b"," for score in scores)
            self._choices[index].scores.extend(text)
            count += len(text)
        for index, cached in comment.cached:
            self._choices[index].cached = cached
        for index in comment.f:
            self._choices[index].finished = True
        self._charge(count)
