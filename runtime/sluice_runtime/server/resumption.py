"""Private calls of the router: resuming another engine's answer, and events with the state that a
resume needs.

The router can send a request with the tokens that another engine has generated. This engine checks
that it has the same prompt and model, and replays the tokens. Each event of its answer carries a
comment with new tokens, so that a third engine could continue. The format is
`sluice_contract.wire.private_calls`; docs/reference/private-calls.md describes it.
"""

from __future__ import annotations

import asyncio
import hashlib
from array import array
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import msgspec
from sluice_contract import http_errors
from sluice_contract.http_errors import Mistake
from sluice_contract.wire.private_calls import (
    RESUME_MISMATCH,
    AnswerStart,
    CallHead,
    ChoiceSoFar,
    EventComment,
    Resume,
    Score,
    split_body,
)

from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.choice_plans import ChoicePlan
from sluice_runtime.server.failures import MistakenError
from sluice_runtime.server.generation import ChoiceReader, EarlierTokens, ResumableChoice, replay
from sluice_runtime.server.response_writers import Writer, is_light
from sluice_runtime.server.streaming import CommentedEvent
from sluice_runtime.wire.messages import TokenLogprob

MAX_HEAD_BYTES: Final = 64 * 1024 * 1024
"""Bytes of a private call in addition to the client's body; a token with logprobs takes up to
700."""


_MAX_WAITING_TOKENS: Final = 16
"""A comment is sent without an event once this many tokens wait for one. Tokens that have not been
sent must be generated again after a failure."""
Pieces = AsyncGenerator[Piece, None]


def split_call(body: bytes, max_client_bytes: int) -> tuple[CallHead, bytes]:
    """Splits a private call's body into its head and the client's body.

    Raises:
        MistakenError: the call has no head, or the client's body is too long.
    """
    try:
        head, client_body = split_body(body)
    except ValueError as error:
        message = f"the first line: {error}; allowed: the head of a private call"
        raise MistakenError(Mistake(400, "invalid_value", message)) from None
    if len(client_body) > max_client_bytes:
        raise MistakenError(http_errors.body_too_large(max_client_bytes))
    return head, client_body


def prompt_hash(prompts: Sequence[Sequence[int]], adapter: str = "") -> str:
    """Hash of the prompts' token ids and of the adapter that continues them."""
    digest = hashlib.sha256(adapter.encode())
    for prompt in prompts:
        digest.update(array("Q", [len(prompt), *prompt]).tobytes())
    return digest.hexdigest()


def resumable_choices(
    plans: Sequence[ChoicePlan],
    own: AnswerStart,
    resume: Resume | None,
    vocabulary_size: int,
    read: Callable[[ChoicePlan], ChoiceReader],
) -> list[ResumableChoice]:
    """The request's choices, continued from `resume` or begun. `own`: the start as this engine
    computes it.

    Raises:
        MistakenError: 409, the prompt or the model differs from the other engine's; says which.
    """
    if resume is None:
        return [ResumableChoice(read(plan)) for plan in plans]
    _refuse_mismatch(plans, own, resume, vocabulary_size)
    most = resume.start.max_tokens
    limited = [
        replace(plan, max_tokens=min(plan.max_tokens, most[place]))
        for place, plan in enumerate(plans)
    ]
    return [
        _replayed_choice(place, read(plan), resume.choices[place])
        for place, plan in enumerate(limited)
    ]


def _refuse_mismatch(
    plans: Sequence[ChoicePlan], own: AnswerStart, resume: Resume, vocabulary_size: int
) -> None:
    start = resume.start
    for key, theirs, ours, meaning in (
        ("answerIdentity", start.answer_identity, own.answer_identity, "the model as served here"),
        ("promptHash", start.prompt_hash, own.prompt_hash, "the prompts as this engine reads"),
    ):
        if theirs != ours:
            raise _mismatch(f"start.{key}", theirs or "an empty one", f"{ours}, of {meaning}")
    for key, entries in (("start.maxTokens", start.max_tokens), ("choices", resume.choices)):
        if len(entries) != len(plans):
            raise _mismatch(key, f"{len(entries)} entries", f"{len(plans)}, one for each choice")
    for number, (plan, choice) in enumerate(zip(plans, resume.choices, strict=True)):
        _refuse_choice_mismatch(f"choices[{number}]", plan, choice, vocabulary_size)


def _refuse_choice_mismatch(
    place: str, plan: ChoicePlan, choice: ChoiceSoFar, vocabulary_size: int
) -> None:
    wrong = next((token for token in choice.ids if not 0 <= token < vocabulary_size), None)
    if wrong is not None:
        raise _mismatch(f"{place}.ids", f"token id {wrong}", f"0 to {vocabulary_size - 1}")
    scores = len(choice.ids) if plan.logprobs >= 0 else 0
    if len(choice.scores) != scores:
        allowed = f"{scores}, for {len(choice.ids)} ids"
        raise _mismatch(f"{place}.scores", f"{len(choice.scores)} entries", allowed)


def _replayed_choice(place: int, reader: ChoiceReader, choice: ChoiceSoFar) -> ResumableChoice:
    scores = [
        TokenLogprob(token, score.logprob, score.rank, score.top)
        for token, score in zip(choice.ids, choice.scores, strict=False)
    ]
    drawn = EarlierTokens(choice.ids, scores, choice.cached, finished=choice.finished)
    begun = replay(reader, drawn)
    if begun is None or (choice.finished and choice.ids and not begun.complete):
        ends = "behind" if begun is None else "before"
        counted = f"{len(choice.ids)} that end {ends} the answer's end"
        raise _mismatch(f"choices[{place}].ids", counted, "those that were told")
    return begun


def _mismatch(key: str, value: str, allowed: str) -> MistakenError:
    message = f"resume.{key}: {value} is not allowed; allowed: {allowed}"
    return MistakenError(Mistake(409, RESUME_MISMATCH, message))


class CommentNotes:
    """Collects the content of the next event's comment."""

    def __init__(self, start: AnswerStart) -> None:
        self._start: AnswerStart | None = start
        self._ids: dict[int, list[int]] = {}
        self._scores: dict[int, list[Score]] = {}
        self._cached: list[tuple[int, int]] = []
        self._finished: list[int] = []
        self._tokens = 0

    @property
    def due(self) -> bool:
        """Whether the comment should be sent now, even without an event."""
        return self._start is not None or self._tokens >= _MAX_WAITING_TOKENS

    def finished(self, piece: Piece) -> None:
        """Notes that the choice has ended if this piece is its last."""
        if piece.finish_reason is not None:
            self._finished.append(piece.index)

    def add(self, piece: Piece) -> None:
        """Notes the tokens of a piece."""
        if not piece.drawn_ids:
            return
        self._tokens += len(piece.drawn_ids)
        self._ids.setdefault(piece.index, []).extend(piece.drawn_ids)
        if piece.drawn_scores:
            self._scores.setdefault(piece.index, []).extend(map(_score, piece.drawn_scores))
        if piece.cached_tokens:
            self._cached.append((piece.index, piece.cached_tokens))

    def take(self, *, last: bool = False) -> EventComment:
        """Returns the comment and begins to collect the next one."""
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


async def streamed_events(
    writer: Writer, choices: Sequence[ResumableChoice], pieces: Pieces, start: AnswerStart
) -> AsyncGenerator[CommentedEvent, None]:
    """The events of a streamed answer, from the point at which the other engine stopped."""
    notes = CommentNotes(start)
    for choice in choices:
        writer.skip_sent(choice)
    async with aclosing(_with_unsent([p for c in choices for p in c.unsent], pieces)) as all_pieces:
        async for piece in all_pieces:
            notes.add(piece)
            notes.finished(piece)
            light = is_light([piece])
            chunk = writer.chunk(piece) if light else await asyncio.to_thread(writer.chunk, piece)
            if chunk or notes.due:
                yield CommentedEvent(notes.take(), chunk)
    yield CommentedEvent(notes.take(last=True), writer.final_chunk())


async def whole_event(
    encode: Callable[[Sequence[Piece]], bytes],
    choices: Sequence[ResumableChoice],
    pieces: Pieces,
    start: AnswerStart,
) -> AsyncGenerator[CommentedEvent, None]:
    """Comments that report the progress of an answer that is not streamed, then one event with all
    of it. With prompt logprobs the comments report no tokens, since an engine that takes over must
    score the prompt and so starts again."""
    notes = CommentNotes(start)
    again = any(choice.reader.plan.engine_prompt_logprobs >= 0 for choice in choices)
    collected = [piece for choice in choices for piece in choice.pieces]
    async with aclosing(pieces):
        async for piece in pieces:
            collected.append(piece)
            if not again:
                notes.add(piece)
            if notes.due:
                yield CommentedEvent(notes.take(), None)
    body = await asyncio.to_thread(encode, collected)
    yield CommentedEvent(notes.take(last=True), msgspec.Raw(body))


async def _with_unsent(unsent: Sequence[Piece], pieces: Pieces) -> Pieces:
    async with aclosing(pieces):
        for piece in unsent:
            yield piece
        async for piece in pieces:
            yield piece
