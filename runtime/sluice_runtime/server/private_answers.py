"""The answer to a private call: events with comments that tell what a resume needs.

Knows neither HTTP nor the engine; `sluice_contract.wire.private_calls` is the format.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from sluice_contract.wire.private_calls import AnswerStart, EventComment, Score

from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.answers import Writer, is_light
from sluice_runtime.server.choice import BegunChoice
from sluice_runtime.server.streaming import CommentedEvent
from sluice_runtime.wire.messages import TokenLogprob

_HELD_TOKENS: Final = 16
"""Tokens that may wait for an event to travel with; those are drawn again after a failure."""

Pieces = AsyncGenerator[Piece, None]


class Notes:
    """What the next comment says."""

    def __init__(self, start: AnswerStart) -> None:
        self._start: AnswerStart | None = start
        self._ids: dict[int, list[int]] = {}
        self._scores: dict[int, list[Score]] = {}
        self._cached: list[tuple[int, int]] = []
        self._finished: list[int] = []
        self._tokens = 0

    @property
    def due(self) -> bool:
        """Whether they should not wait for the next event."""
        return self._start is not None or self._tokens >= _HELD_TOKENS

    def finished(self, piece: Piece) -> None:
        """Notes a piece that may be the last one that is sent of its choice."""
        if piece.finish_reason is not None:
            self._finished.append(piece.index)

    def add(self, piece: Piece) -> None:
        """Notes what a piece is made of."""
        if not piece.drawn_ids:
            return
        self._tokens += len(piece.drawn_ids)
        self._ids.setdefault(piece.index, []).extend(piece.drawn_ids)
        if piece.drawn_scores:
            self._scores.setdefault(piece.index, []).extend(map(_score, piece.drawn_scores))
        if piece.cached_tokens:
            self._cached.append((piece.index, piece.cached_tokens))

    def taken(self, *, last: bool = False) -> EventComment:
        """Returns and forgets them."""
        comment = EventComment(
            self._start,
            list(self._ids.items()),
            list(self._scores.items()),
            self._cached,
            self._finished,
            last,
        )
        self._start, self._ids, self._scores = None, {}, {}
        self._cached, self._finished, self._tokens = [], [], 0
        return comment


def _score(score: TokenLogprob) -> Score:
    return Score(score.logprob, score.rank, score.top)


async def streamed(
    writer: Writer, choices: Sequence[BegunChoice], pieces: Pieces, start: AnswerStart
) -> AsyncGenerator[CommentedEvent, None]:
    """The events of an answer that is streamed, from where another engine left it."""
    notes = Notes(start)
    for choice in choices:
        writer.passed(choice)
    async with aclosing(_with_begun([p for c in choices for p in c.unsent], pieces)) as all_pieces:
        async for piece in all_pieces:
            notes.add(piece)
            notes.finished(piece)
            light = is_light([piece])
            chunk = writer.of(piece) if light else await asyncio.to_thread(writer.of, piece)
            if chunk or notes.due:
                yield CommentedEvent(notes.taken(), chunk)
    yield CommentedEvent(notes.taken(last=True), writer.last())


async def whole_at_end(
    written: Callable[[Sequence[Piece]], bytes],
    choices: Sequence[BegunChoice],
    pieces: Pieces,
    start: AnswerStart,
) -> AsyncGenerator[CommentedEvent, None]:
    """The one event of an answer that is not streamed; comments before it tell how far it is. With
    a scored prompt they tell no ids: the next engine begins anew, since it has to score it."""
    notes = Notes(start)
    again = any(choice.reader.plan.engine_prompt_logprobs >= 0 for choice in choices)
    collected = [piece for choice in choices for piece in choice.pieces]
    async with aclosing(pieces):
        async for piece in pieces:
            collected.append(piece)
            if not again:
                notes.add(piece)
            if notes.due:
                yield CommentedEvent(notes.taken(), None)
    body = await asyncio.to_thread(written, collected)
    yield CommentedEvent(notes.taken(last=True), msgspec.Raw(body))


async def _with_begun(unsent: Sequence[Piece], pieces: Pieces) -> Pieces:
    async with aclosing(pieces):
        for piece in unsent:
            yield piece
        async for piece in pieces:
            yield piece
