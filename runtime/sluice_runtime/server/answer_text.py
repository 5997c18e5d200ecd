"""The text of one choice: engine deltas → detokeniser → stop strings → pieces.

Pure; knows neither the engine nor JSON.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

import msgspec

from sluice_runtime.messages import TokenDelta, TokenLogprob
from sluice_runtime.server.detokenizer import Detokenizer
from sluice_runtime.server.prompts import ChoicePlan
from sluice_runtime.server.stop_strings import StopStrings
from sluice_runtime.server.token_text import ScoredToken, TokenTexts
from sluice_runtime.server.tools.calls import CallPart, whole_calls
from sluice_runtime.tokenizer import Tokenizer


@dataclass(frozen=True)
class Piece:
    """The next part of one choice. `finish_reason` is set on a choice's last piece only."""

    index: int
    text: str
    tokens: int
    """Tokens of the engine that this piece accounts for, the stop token included."""
    cached_tokens: int = 0
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    token_ids: tuple[int, ...] = ()
    """Tokens of which some text is out by now. Neither the stop token nor what lies beyond a stop
    string is ever among them."""
    scores: tuple[ScoredToken, ...] | None = None
    """Of `token_ids`, and before them of an echoed prompt; None when nobody asked."""
    prompt_scores: tuple[ScoredToken, ...] | None = None
    """Of the prompt's tokens, on the first piece; None when nobody asked."""
    calls: tuple[CallPart, ...] = ()
    """Parts of tool calls; their text is no part of the answer's."""


def joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of one choice as one."""
    scores = [piece.scores for piece in pieces if piece.scores is not None]
    return replace(
        pieces[0],
        text="".join([piece.text for piece in pieces]),
        tokens=sum(piece.tokens for piece in pieces),
        finish_reason=pieces[-1].finish_reason,
        token_ids=tuple(chain.from_iterable(piece.token_ids for piece in pieces)),
        scores=tuple(chain.from_iterable(scores)) if scores else None,
        calls=whole_calls(chain.from_iterable(piece.calls for piece in pieces)),
    )


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A token whose text may not be out yet."""

    token_id: int
    start: int
    """Characters of the answer before it."""
    score: TokenLogprob | None


class AnswerText:
    """The text of one choice, from token deltas to pieces."""

    def __init__(self, plan: ChoicePlan, tokenizer: Tokenizer, texts: TokenTexts) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._texts = texts
        self._detokenizer = Detokenizer(tokenizer, plan.shown_tokens)
        self._stops = StopStrings(plan.stops, kept=plan.keeps_stop)
        self._waiting: deque[_Waiting] = deque()
        self._tokens = 0
        self._characters = 0
        """Of the answer as far as it is known."""
        self._emitted = 0
        """Of the answer as far as it is out."""
        self._begun = False

    def push(self, delta: TokenDelta) -> Piece:
        """The piece this delta makes. Stop string before EOS before length."""
        taken = len(delta.token_ids)
        text = ""
        scores: Sequence[TokenLogprob | None] = delta.logprobs or [None] * taken
        for number, token in enumerate(self._visible(delta)):
            text += self._take(token, scores[number])
            if self._stops.found:
                taken = number + 1
                break
        if delta.finish_reason is not None and not self._stops.found:
            text += self._stops.push(self._detokenizer.finish(), honoured=self._honoured)
            text += self._stops.finish()
        return self._piece(delta, text, taken)

    @property
    def _honoured(self) -> bool:
        return self._tokens > self._plan.min_tokens

    def _take(self, token: int, score: TokenLogprob | None) -> str:
        """What one token more makes certain."""
        self._tokens += 1
        self._waiting.append(_Waiting(token, self._characters, score))
        text = self._detokenizer.push([token])
        self._characters += len(text)
        return self._stops.push(text, honoured=self._honoured)

    def _piece(self, delta: TokenDelta, text: str, taken: int) -> Piece:
        self._emitted += len(text)
        reason: Literal["stop", "length"] | None = None
        if self._stops.found:
            reason = "stop"
        elif delta.finish_reason is not None:
            reason = "length" if delta.finish_reason == "length" else "stop"
        out = self._released(everything=reason is not None and not self._stops.found)
        shift = len(self._plan.echo or "")
        piece = Piece(
            index=self._plan.index,
            text=text,
            tokens=taken,
            cached_tokens=delta.cached_tokens,
            finish_reason=reason,
            token_ids=tuple([one.token_id for one in out]),
            scores=None
            if self._plan.logprobs < 0
            else tuple([self._texts.scored(t.token_id, t.start + shift, t.score) for t in out]),
        )
        if self._begun:
            return piece
        self._begun = True
        return self._with_prompt(piece, delta.prompt_logprobs)

    def _released(self, *, everything: bool) -> list[_Waiting]:
        """Tokens of which some text is out: with a stop string, none beyond it."""
        out = []
        while self._waiting and (everything or self._waiting[0].start < self._emitted):
            out.append(self._waiting.popleft())
        return out

    def _with_prompt(self, piece: Piece, logprobs: Sequence[TokenLogprob] | None) -> Piece:
        """The first piece also carries what is said of the prompt."""
        plan = self._plan
        if plan.echo is not None:
            piece = replace(piece, text=plan.echo + piece.text)
        if logprobs is None:
            return piece
        scored = self._prompt_scores(logprobs)
        if plan.echo is not None and piece.scores is not None:
            echoed = _with_best(scored, plan.logprobs)
            piece = replace(piece, scores=(*echoed, *piece.scores))
        if plan.prompt_logprobs < 0:
            return piece
        return replace(piece, prompt_scores=tuple(_with_best(scored, plan.prompt_logprobs)))

    def _prompt_scores(self, logprobs: Sequence[TokenLogprob]) -> list[ScoredToken]:
        detokenizer, offset = Detokenizer(self._tokenizer), 0
        scored = []
        for token, score in zip(self._plan.prompt_ids, [None, *logprobs], strict=True):
            scored.append(self._texts.scored(token, offset, score))
            offset += len(detokenizer.push([token]))
        return scored

    def _visible(self, delta: TokenDelta) -> Sequence[int]:
        """Without the stop token that ended the answer, unless the client wants it."""
        ids = delta.token_ids
        ended_by_token = delta.finish_reason == "stop" and ids and not self._plan.keeps_stop
        return ids[:-1] if ended_by_token and ids[-1] in self._plan.stop_token_ids else ids


def _with_best(scored: list[ScoredToken], top: int) -> list[ScoredToken]:
    """With as many of the most probable tokens as were asked for; more may have been told."""
    return [msgspec.structs.replace(one, top=one.top[:top]) for one in scored]
