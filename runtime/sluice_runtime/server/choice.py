"""One choice from token deltas to pieces, with its reasoning and its tool calls parsed.

Pure: a reader that another engine's ids are replayed in is where that engine's was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sluice_runtime.model.tokenizer import Tokenizer
from sluice_runtime.server.answer_text import AnswerText, Piece
from sluice_runtime.server.prompts import ChoicePlan
from sluice_runtime.server.reasoning.parser import ReasoningParser
from sluice_runtime.server.token_text import TokenTexts
from sluice_runtime.server.tools.calls import CallParser, whole_calls
from sluice_runtime.wire.messages import FinishReason, TokenDelta, TokenLogprob


class ChoiceReader:
    """Reads one choice. `answer`: a name that no other choice has, for the ids of its calls."""

    def __init__(
        self, plan: ChoicePlan, tokenizer: Tokenizer, texts: TokenTexts, answer: str
    ) -> None:
        self.plan = plan
        self._text = AnswerText(plan, tokenizer, texts)
        self._reasoning = plan.reasoning.parser() if plan.reasoning else None
        self._parser = plan.reading.parser(answer) if plan.reading else None

    def push(self, delta: TokenDelta) -> Piece:
        """The piece for this delta; the one with a finish reason is the last."""
        piece = self._text.push(delta)
        if self._reasoning is not None:
            piece = _with_reasoning(piece, self._reasoning)
        return piece if self._parser is None else _with_calls(piece, self._parser)


@dataclass(frozen=True)
class BegunChoice:
    """A choice and what another engine generated of it."""

    reader: ChoiceReader
    ids: Sequence[int] = ()
    pieces: tuple[Piece, ...] = ()
    """All that the ids say, in two pieces at most: the last token may end the answer."""
    finished: bool = False
    """Whether its end was sent, too."""

    @property
    def complete(self) -> bool:
        """Whether the ids end the answer."""
        return bool(self.pieces) and self.pieces[-1].finish_reason is not None

    @property
    def ended(self) -> bool:
        """Whether there is nothing left to generate."""
        return self.finished or self.complete

    @property
    def unsent(self) -> tuple[Piece, ...]:
        """Of a stream: the end, if the client does not know of it."""
        return self.pieces[-1:] if self.ended and not self.finished else ()

    @property
    def sent(self) -> tuple[Piece, ...]:
        """Of a stream: what the client has."""
        return self.pieces[: len(self.pieces) - len(self.unsent)]


@dataclass(frozen=True)
class Drawn:
    """Tokens of one choice that another engine drew."""

    ids: Sequence[int]
    scores: Sequence[TokenLogprob] = ()
    """As many, or none."""
    cached_tokens: int = 0
    finished: bool = field(default=False, kw_only=True)


def replay(reader: ChoiceReader, drawn: Drawn) -> BegunChoice | None:
    """The choice where the other engine left it; None if the ids go on behind its end."""
    ids, plan = drawn.ids, reader.plan
    pieces: list[Piece] = []
    if not ids:
        return BegunChoice(reader, finished=drawn.finished)
    last = len(ids) - 1
    steps: list[tuple[int, int, FinishReason | None]] = [(last, len(ids), _end(plan, ids))]
    for start, end, reason in [(0, last, None), *steps] if last else steps:
        if pieces and pieces[-1].finish_reason is not None:
            return None
        delta = TokenDelta(
            "",
            tuple(ids[start:end]),
            reason,
            cached_tokens=0 if start else drawn.cached_tokens,
            logprobs=tuple(drawn.scores[start:end]),
        )
        pieces.append(replace(reader.push(delta), drawn_ids=(), drawn_scores=()))
    if len(ids) > plan.max_tokens or not set(plan.stop_token_ids).isdisjoint(ids[:-1]):
        return None
    return BegunChoice(reader, ids, tuple(pieces), drawn.finished)


def _end(plan: ChoicePlan, ids: Sequence[int]) -> FinishReason | None:
    """How the engine would have ended an answer of these ids."""
    if ids[-1] in plan.stop_token_ids:
        return "stop"
    return "length" if len(ids) >= plan.max_tokens else None


def _with_reasoning(piece: Piece, parser: ReasoningParser) -> Piece:
    """The piece with its reasoning parted from its text."""
    parts = [parser.push(piece.text)]
    if piece.finish_reason is not None:
        parts.append(parser.finish())
    return replace(
        piece,
        text="".join([part.text for part in parts]),
        reasoning="".join([part.reasoning for part in parts]),
        reasoning_tokens=parser.count(piece.starts),
    )


def _with_calls(piece: Piece, parser: CallParser) -> Piece:
    """The piece with its tool calls parsed. A choice that stops and has calls finishes with
    `tool_calls`."""
    parsed = parser.push(piece.text)
    if piece.finish_reason is None:
        return replace(piece, text=parsed.text, calls=parsed.calls)
    rest = parser.finish()
    called = parser.calls > 0 and piece.finish_reason == "stop"
    return replace(
        piece,
        text=parsed.text + rest.text,
        calls=whole_calls([*parsed.calls, *rest.calls]),
        finish_reason="tool_calls" if called else piece.finish_reason,
    )
