"""The text of one choice: engine deltas → detokeniser → stop strings → pieces. Pure.

The pieces' joined text equals `decode` of all ids. Text is held back while the next token may still
change it: a character may be split over several tokens, and a stop string may have begun.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from sluice_runtime.model.tokenizer import Tokenizer
from sluice_runtime.server.choice_plans import ChoicePlan
from sluice_runtime.server.token_text import ScoredToken, TokenTexts
from sluice_runtime.server.tools.calls import CallPart, whole_calls
from sluice_runtime.server.tools.source import possible_start
from sluice_runtime.wire.messages import TokenDelta, TokenLogprob

_REPLACEMENT: Final = "\ufffd"
_CONTEXT_TOKENS: Final = 4
"""Earlier tokens decoded together with new ones, since decoders treat the first token of a text
differently."""
_WINDOW_TOKENS: Final = 32
"""Most tokens decoded at a time, except for one long run of byte tokens."""


class Piece(msgspec.Struct, frozen=True):
    """The next part of one choice. `finish_reason` is set on a choice's last piece only."""

    index: int
    text: str
    tokens: int
    """Generated tokens that this piece accounts for, including the stop token."""
    cached_tokens: int = 0
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    stop: str | None = None
    """The stop string that ended the choice."""
    token_ids: tuple[int, ...] = ()
    """Tokens whose text has begun to be sent; never the stop token, nor tokens after a stop
    string."""
    starts: tuple[int, ...] = ()
    """Number of characters of the answer before each of `token_ids`; empty without reasoning."""
    scores: tuple[ScoredToken, ...] | None = None
    """Logprobs of `token_ids`, after those of an echoed prompt; None when not requested."""
    prompt_scores: tuple[ScoredToken, ...] | None = None
    """Logprobs of the prompt's tokens, on the first piece; None when not requested."""
    returned_ids: tuple[int, ...] | None = None
    """The ids of all `tokens`; None when not requested."""
    prompt_ids: Sequence[int] | None = None
    """Ids of the prompt, on the first piece; None when not requested."""
    reasoning: str = ""
    """Reasoning that the model writes before its answer; not in `text`."""
    in_text: bool = True
    """Whether the piece's tokens without text certainly belong to the text, not to reasoning or a
    call."""
    reasoning_tokens: int = 0
    """Number of tokens found to be reasoning since the last piece."""
    calls: tuple[CallPart, ...] = ()
    """Parts of tool calls, in order; their source text is not in `text`."""
    drawn_ids: tuple[int, ...] = ()
    """The ids of all `tokens`."""
    drawn_scores: tuple[TokenLogprob, ...] = ()
    """Logprobs of all `tokens`, if requested."""

    @property
    def text_and_calls(self) -> list[str | CallPart]:
        """The text, in parts, and the calls, in the order in which they were generated."""
        parts: list[str | CallPart] = []
        sent = 0
        for call in self.calls:
            if text := self.text[sent : call.text_before]:
                parts.append(text)
                sent = call.text_before
            parts.append(call)
        return [*parts, text] if (text := self.text[sent:]) else parts


def joined(pieces: Sequence[Piece]) -> Piece:
    """All pieces of a choice joined into one."""
    scores = [piece.scores for piece in pieces if piece.scores is not None]
    ids = [piece.returned_ids for piece in pieces if piece.returned_ids is not None]
    return replace(
        pieces[0],
        text="".join([piece.text for piece in pieces]),
        reasoning="".join([piece.reasoning for piece in pieces]),
        tokens=sum(piece.tokens for piece in pieces),
        finish_reason=pieces[-1].finish_reason,
        stop=pieces[-1].stop,
        token_ids=tuple(chain.from_iterable(piece.token_ids for piece in pieces)),
        scores=tuple(chain.from_iterable(scores)) if scores else None,
        returned_ids=tuple(chain.from_iterable(ids)) if ids else None,
        calls=whole_calls(chain.from_iterable(piece.calls for piece in pieces)),
        drawn_ids=tuple(chain.from_iterable(piece.drawn_ids for piece in pieces)),
        drawn_scores=tuple(chain.from_iterable(piece.drawn_scores for piece in pieces)),
    )


class _Waiting(NamedTuple):
    """A token whose text may not have been sent yet."""

    token_id: int
    start: int
    """Number of characters of the answer before the token."""
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
        """Decoded so far."""
        self._emitted = 0
        """Sent so far."""
        self._begun = False

    def push(self, delta: TokenDelta) -> Piece:
        """The piece for this delta. A stop string takes precedence over EOS, EOS over length."""
        taken = len(delta.token_ids)
        text = ""
        scores: Sequence[TokenLogprob | None] = delta.logprobs or [None] * taken
        for number, token in enumerate(self._visible(delta)):
            text += self._take(token, scores[number])
            if self._stops.stopped:
                taken = number + 1
                break
        if delta.finish_reason is not None and not self._stops.stopped:
            text += self._stops.push(self._detokenizer.finish(), honoured=self._honoured)
            text += self._stops.finish()
        return self._piece(delta, text, taken)

    @property
    def _honoured(self) -> bool:
        return self._tokens > self._plan.min_tokens

    def _take(self, token: int, score: TokenLogprob | None) -> str:
        """Decodes one more token; returns the text that later tokens cannot change."""
        self._tokens += 1
        self._waiting.append(_Waiting(token, self._characters, score))
        text = self._detokenizer.push([token])
        self._characters += len(text)
        return self._stops.push(text, honoured=self._honoured)

    def _piece(self, delta: TokenDelta, text: str, taken: int) -> Piece:
        self._emitted += len(text)
        reason: Literal["stop", "length"] | None = None
        if self._stops.stopped:
            reason = "stop"
        elif delta.finish_reason is not None:
            reason = "length" if delta.finish_reason == "length" else "stop"
        released = self._released(everything=reason is not None and not self._stops.stopped)
        piece = Piece(
            index=self._plan.index,
            text=text,
            tokens=taken,
            cached_tokens=delta.cached_tokens,
            finish_reason=reason,
            stop=self._stops.found,
            token_ids=tuple([token.token_id for token in released]),
            starts=tuple([token.start for token in released]) if self._plan.reasoning else (),
            scores=None if self._plan.logprobs < 0 else self._scored(released),
            returned_ids=tuple(delta.token_ids[:taken]) if self._plan.returns_token_ids else None,
            drawn_ids=tuple(delta.token_ids[:taken]),
            drawn_scores=tuple(delta.logprobs[:taken]),
        )
        if self._begun:
            return piece
        self._begun = True
        return self._with_prompt(piece, delta.prompt_logprobs)

    def _scored(self, tokens: Sequence[_Waiting]) -> tuple[ScoredToken, ...]:
        shift = len(self._plan.echo or "")
        scored = [self._texts.scored(t.token_id, t.start + shift, t.score) for t in tokens]
        return tuple(scored)

    def _released(self, *, everything: bool) -> list[_Waiting]:
        """The waiting tokens whose text has begun to be sent; with a stop string, none after it."""
        released = []
        while self._waiting and (everything or self._waiting[0].start < self._emitted):
            released.append(self._waiting.popleft())
        return released

    def _with_prompt(self, piece: Piece, logprobs: Sequence[TokenLogprob] | None) -> Piece:
        """Adds to the first piece what concerns the prompt."""
        plan = self._plan
        if plan.returns_token_ids:
            piece = replace(piece, prompt_ids=plan.prompt_ids)
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
        """Tokens of the delta without the stop token, unless the client asked for it in the
        text."""
        ids = delta.token_ids
        ended_by_token = delta.finish_reason == "stop" and ids and not self._plan.keeps_stop
        return ids[:-1] if ended_by_token and ids[-1] in self._plan.stop_token_ids else ids


def _with_best(scored: list[ScoredToken], top: int) -> list[ScoredToken]:
    """Cuts the top logprobs to the number requested; the engine may have sent more."""
    return [replace(score, top=score.top[:top]) for score in scored]


class StopStrings:
    """Passes text on until a stop string; holds back what may be the start of one.

    The stop string that ends first wins, and of several that end together the longest, however the
    text was split.
    """

    def __init__(self, stops: Sequence[str], *, kept: bool = False) -> None:
        self._stops = tuple(stops)
        self._firsts = frozenset(stop[0] for stop in stops)
        self._kept = kept
        """Whether the stop string is part of the answer."""
        self._held = ""
        self.stopped = False
        self.found: str | None = None
        """The stop string, once it was found."""

    def push(self, text: str, *, honoured: bool = True) -> str:
        """Adds text; returns text that certainly belongs to the answer, and "" once a stop string
        was found. `honoured` false: stop strings that end in this text are ordinary text."""
        if self.stopped or not self._stops:
            return "" if self.stopped else text
        pending = self._held + text
        cut = self._first_stop(pending, len(self._held)) if honoured else None
        if cut is not None:
            self.stopped, self._held = True, ""
            return pending[:cut]
        begun = not self._firsts.isdisjoint(pending)
        held_characters = possible_start(pending, self._stops) if begun else 0
        self._held = pending[len(pending) - held_characters :]
        return pending[: len(pending) - held_characters]

    def finish(self) -> str:
        """The text that was held back and is not part of a stop string."""
        held_text, self._held = self._held, ""
        return held_text

    def _first_stop(self, text: str, after: int) -> int | None:
        """Where the answer ends: at the stop string that ends first after `after` characters."""
        hits = []
        for stop in self._stops:
            at = text.find(stop, max(0, after - len(stop) + 1))
            if at >= 0:
                hits.append((at + len(stop), at))
        if not hits:
            return None
        end, start = min(hits)
        self.found = text[start:end]
        return end if self._kept else start


class Detokenizer:
    """The text of one growing answer."""

    def __init__(self, tokenizer: Tokenizer, shown: Mapping[int, str] | None = None) -> None:
        self._tokenizer = tokenizer
        self._shown = shown or {}
        """Special tokens to be decoded as text, with their text."""
        self._window: list[int] = []
        """The last tokens: context, then those whose text has not been returned."""
        self._emitted = 0
        """Characters of the window's text that have been returned."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        hidden = self._tokenizer.hidden_ids
        return "".join(
            [
                self._push_one(token) if token not in hidden else self._push_shown(token)
                for token in token_ids
                if token not in hidden or token in self._shown
            ]
        )

    def finish(self) -> str:
        """The text that was held back; nothing may be pushed afterwards."""
        text = self._tokenizer.decode(self._window)[self._emitted :]
        self._emitted += len(text)
        return text

    def _push_shown(self, token: int) -> str:
        """Decodes a special token that is shown as text; characters never span it."""
        text = self.finish() + self._shown[token]
        self._window, self._emitted = [], 0
        return text

    def _push_one(self, token: int) -> str:
        self._window.append(token)
        if token in self._tokenizer.byte_ids:
            return ""
        text = self._tokenizer.decode(self._window)
        open_ended = text.endswith(_REPLACEMENT)
        certain = len(text) - 1 if open_ended else len(text)
        piece = text[self._emitted : certain]
        self._emitted = max(self._emitted, certain)
        if not open_ended:
            self._cut_context()
        elif len(self._window) > _WINDOW_TOKENS:
            self._cut_inside(text)
        return piece

    def _cut_context(self) -> None:
        """Drops old tokens of a window whose text has been returned, a few at a time."""
        if len(self._window) > 2 * _CONTEXT_TOKENS:
            self._window = self._window[-_CONTEXT_TOKENS:]
            self._emitted = len(self._tokenizer.decode(self._window))

    def _cut_inside(self, text: str) -> None:
        """Drops old tokens of a long run of incomplete characters.

        If two halves decode to the whole text, no character spans both, so later tokens cannot
        change the first half's text.
        """
        decode = self._tokenizer.decode
        for kept in range(1, 2 * _CONTEXT_TOKENS):
            tail = decode(self._window[-kept:])
            if decode(self._window[:-kept]) + tail == text:
                self._window = self._window[-kept:]
                self._emitted -= len(text) - len(tail)
                return
