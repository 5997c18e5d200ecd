"""Pieces of text as OpenAI's response objects, for both routes, whole and streamed. Plain dicts.

Knows no HTTP: `streaming` turns the chunks into events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sluice_runtime.server.answer_text import Piece, joined
from sluice_runtime.server.logprobs_json import chat_logprobs, completion_logprobs, prompt_logprobs
from sluice_runtime.server.tools.calls import CallPart


@dataclass
class Usage:
    """Tokens of a request, counted as its pieces come. A prompt counts once, however many choices
    are drawn for it, and of it as cached what was there before any of them."""

    prompt_lengths: Sequence[int]
    """Tokens of each prompt."""
    choices: int
    """Of each prompt; the pieces of a prompt's choices have neighbouring indices."""
    completion_tokens: int = 0
    _cached: dict[int, int] = field(default_factory=dict)
    """By choice, as its first piece tells."""

    def add(self, piece: Piece) -> None:
        """Counts one more piece."""
        self.completion_tokens += piece.tokens
        self._cached.setdefault(piece.index, piece.cached_tokens)

    def to_json(self) -> dict[str, Any]:
        prompt_tokens = sum(self.prompt_lengths)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens()},
        }

    def _cached_tokens(self) -> int:
        """The later choices of a prompt find it cached because the first one computed it."""
        by_prompt: dict[int, int] = {}
        for index, tokens in self._cached.items():
            prompt = index // self.choices
            by_prompt[prompt] = min(tokens, by_prompt.get(prompt, tokens))
        return sum(by_prompt.values())


@dataclass(frozen=True)
class Envelope:
    """What every object of one response shares."""

    response_id: str
    created_unix: int
    model: str

    def around(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created_unix,
            "model": self.model,
            "choices": choices,
            **more,
        }


class Shape(Protocol):
    """How one route spells its choices."""

    whole_object: str
    chunk_object: str

    def whole_choice(self, answer: Piece) -> dict[str, Any]: ...
    def chunk_choice(self, piece: Piece, *, first: bool) -> dict[str, Any]: ...


class CompletionShape:
    """`/v1/completions`: whole and chunk look alike."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def whole_choice(self, answer: Piece) -> dict[str, Any]:
        return self.chunk_choice(answer, first=True)

    def chunk_choice(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        return _choice(piece, completion_logprobs(piece.scores), text=piece.text)


class ChatShape:
    """`/v1/chat/completions`: messages, and deltas of them."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def whole_choice(self, answer: Piece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [_call(call) for call in answer.calls]
        return _choice(answer, chat_logprobs(answer.scores), message=message)

    def chunk_choice(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        delta: dict[str, Any] = {"role": "assistant", "content": piece.text} if first else {}
        if piece.text:
            delta["content"] = piece.text
        if piece.calls:
            delta["tool_calls"] = [_call_delta(call) for call in piece.calls]
        return _choice(piece, chat_logprobs(piece.scores or None), delta=delta)


class GenerateShape:
    """`/generate`: text and token ids, nothing of OpenAI's."""

    whole_object = "generation"
    chunk_object = "generation.chunk"

    def whole_choice(self, answer: Piece) -> dict[str, Any]:
        return self.chunk_choice(answer, first=True)

    def chunk_choice(self, piece: Piece, *, first: bool) -> dict[str, Any]:
        own = {"text": piece.text, "token_ids": list(piece.token_ids)}
        return _choice(piece, chat_logprobs(piece.scores), **own)


def _call(call: CallPart) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _call_delta(part: CallPart) -> dict[str, Any]:
    """A call begins with its id and name; what follows has arguments only."""
    if part.call_id is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    return {"index": part.index, **_call(part)}


def _choice(piece: Piece, logprobs: object, **own: Any) -> dict[str, Any]:
    """What the choices of all routes have, around what is a route's own. `prompt_logprobs` is
    Sluice's own, and there only when it was asked for."""
    choice = {
        "index": piece.index,
        **own,
        "logprobs": logprobs,
        "finish_reason": piece.finish_reason,
    }
    if piece.prompt_scores is not None:
        choice["prompt_logprobs"] = prompt_logprobs(piece.prompt_scores)
    return choice


@dataclass
class Chunks:
    """The chunks of one stream; remembers which choices have begun."""

    shape: Shape
    envelope: Envelope
    usage: Usage
    include_usage: bool
    _begun: set[int] = field(default_factory=set)

    def of(self, piece: Piece) -> dict[str, Any] | None:
        """The chunk for a piece; None when it has nothing to tell."""
        self.usage.add(piece)
        first = piece.index not in self._begun
        told = piece.text or piece.scores or piece.calls or piece.prompt_scores
        if not (told or piece.finish_reason):
            return None
        self._begun.add(piece.index)
        choices = [self.shape.chunk_choice(piece, first=first)]
        more: Mapping[str, Any] = {"usage": None} if self.include_usage else {}
        return self.envelope.around(self.shape.chunk_object, choices, **more)

    def last(self) -> dict[str, Any] | None:
        """The usage chunk, when it was asked for: no choices."""
        if not self.include_usage:
            return None
        return self.envelope.around(self.shape.chunk_object, [], usage=self.usage.to_json())


def whole(
    shape: Shape, envelope: Envelope, usage: Usage, pieces: Iterable[Piece]
) -> dict[str, Any]:
    """The response object of an answer that is not streamed."""
    answers: dict[int, list[Piece]] = {}
    for piece in pieces:
        usage.add(piece)
        answers.setdefault(piece.index, []).append(piece)
    choices = [shape.whole_choice(joined(answers[index])) for index in sorted(answers)]
    return envelope.around(shape.whole_object, choices, usage=usage.to_json())
