"""Writes pieces of an answer in the formats of the routes that generate, as one response or as a
stream's chunks.

Responses and chunks are plain dicts; `streaming` turns the chunks into events. Scored tokens are
encoded to JSON one by one: Python objects for all tokens of a long prompt would take gigabytes, and
encoding them at once would block every stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from sluice_runtime.server.answer_text import Piece, joined
from sluice_runtime.server.generation import ResumableChoice
from sluice_runtime.server.protocol import GenerationRequest, StreamOptions
from sluice_runtime.server.token_text import ScoredToken, TokenText
from sluice_runtime.server.tools.calls import CallPart

_LIGHT_PARTS: Final = 64
"""Most pieces and scored tokens that are encoded on the event loop rather than in a thread; a
scored token may take 30 µs."""


@dataclass
class Usage:
    """Token counts of a request, updated with each piece. A prompt counts once for all its choices,
    and its cached tokens are those that were cached before the first choice."""

    prompt_lengths: Sequence[int]
    """Number of tokens of each prompt."""
    choices: int
    """Number of choices for each prompt. The choices of one prompt have consecutive indices."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Completion tokens that are reasoning."""
    _cached: dict[int, int] = field(default_factory=dict)
    """Cached prompt tokens by choice index, from its first piece."""

    def add(self, piece: Piece) -> None:
        """Counts one more piece."""
        self.completion_tokens += piece.tokens
        self.reasoning_tokens += piece.reasoning_tokens
        self._cached.setdefault(piece.index, piece.cached_tokens)

    def to_json(self) -> dict[str, Any]:
        prompt_tokens = sum(self.prompt_lengths)
        usage: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens()},
        }
        if self.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage

    def _cached_tokens(self) -> int:
        """The sum of each prompt's smallest count over its choices: the later choices find the
        prompt cached because the first one computed it."""
        by_prompt: dict[int, int] = {}
        for index, tokens in self._cached.items():
            prompt = index // self.choices
            by_prompt[prompt] = min(tokens, by_prompt.get(prompt, tokens))
        return sum(by_prompt.values())


@dataclass(frozen=True)
class Envelope:
    """Fields that every object of one response shares."""

    response_id: str
    created_unix: int
    model: str

    def named(self, model: str | None) -> Envelope:
        """The envelope with the name by which the request called the model, if it gave one."""
        return self if model is None else replace(self, model=model)

    def around(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created_unix,
            "model": self.model,
            "choices": choices,
            **more,
        }


class ResponseShape(Protocol):
    """The format of one route's choices."""

    whole_object: str
    chunk_object: str
    one_prompt: bool
    """Whether the prompt's token ids belong to the response rather than to each choice."""

    def whole_choice(self, answer: Piece) -> dict[str, Any]: ...
    def opening_choice(self, piece: Piece) -> dict[str, Any] | None:
        """The chunk that goes before a choice's first piece; None: the route has none."""

    def chunk_choice(self, piece: Piece) -> dict[str, Any]: ...


class CompletionShape:
    """`/v1/completions`: choices of responses and of chunks have the same fields."""

    whole_object = "text_completion"
    chunk_object = "text_completion"
    one_prompt = False

    def whole_choice(self, answer: Piece) -> dict[str, Any]:
        return {"prompt_logprobs": None, **self.chunk_choice(answer)}

    def opening_choice(self, piece: Piece) -> None:
        """None."""

    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        own = {"text": piece.text, **_prompt_ids(piece)}
        return _choice(piece, completion_logprobs(piece.scores), **own)


class ChatShape:
    """`/v1/chat/completions`: a response has messages, a chunk has deltas."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    one_prompt = True

    def whole_choice(self, answer: Piece) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        if answer.reasoning:
            message |= _reasoning(answer)
            message["content"] = answer.text or None
        if answer.calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [_call(call) for call in answer.calls]
        return _choice(answer, chat_logprobs(answer.scores), message=message)

    def opening_choice(self, piece: Piece) -> dict[str, Any]:
        """The chunk with the role. By the role, a client that counts chunks can tell that this one
        has no token."""
        content = None if piece.calls and not piece.text else ""
        delta = {"role": "assistant", "content": content}
        return {"index": piece.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if piece.reasoning:
            delta |= _reasoning(piece)
        if piece.text or (_is_empty_text(piece) and not piece.reasoning):
            delta["content"] = piece.text
        if piece.calls:
            delta["tool_calls"] = [_call_delta(call) for call in piece.calls]
        return _choice(piece, chat_logprobs(piece.scores or None), delta=delta)


class GenerateShape:
    """`/generate`: text and token ids, without OpenAI's fields."""

    whole_object = "generation"
    chunk_object = "generation.chunk"
    one_prompt = False

    def whole_choice(self, answer: Piece) -> dict[str, Any]:
        return self.chunk_choice(answer)

    def opening_choice(self, piece: Piece) -> None:
        """None."""

    def chunk_choice(self, piece: Piece) -> dict[str, Any]:
        own = {"text": piece.text, "token_ids": list(piece.token_ids), **_prompt_ids(piece)}
        return _choice(piece, chat_logprobs(piece.scores), **own)


def _reasoning(piece: Piece) -> dict[str, str]:
    """The reasoning under both names in use: DeepSeek's and SGLang's, and vLLM's."""
    return {"reasoning_content": piece.reasoning, "reasoning": piece.reasoning}


def _is_empty_text(piece: Piece) -> bool:
    """Whether the piece's tokens have no text, or none yet. Such pieces are sent too, because
    benchmarks take the time between chunks for the time between tokens."""
    return piece.in_text and piece.tokens > 0 and not piece.text


def _prompt_ids(piece: Piece) -> dict[str, Any]:
    return {} if piece.prompt_ids is None else {"prompt_token_ids": list(piece.prompt_ids)}


def _call(call: CallPart) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _call_delta(part: CallPart) -> dict[str, Any]:
    """The first part of a call has its id and name; later ones have arguments only."""
    if part.call_id is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    return {"index": part.index, **_call(part)}


def _choice(piece: Piece, logprobs: object, **own: Any) -> dict[str, Any]:
    """A choice: the fields that all routes share, and the route's own. Token ids and
    `prompt_logprobs` are extensions of OpenAI's API, present only when requested."""
    choice = {
        "index": piece.index,
        **own,
        "logprobs": logprobs,
        "finish_reason": piece.finish_reason,
    }
    if piece.returned_ids is not None:
        choice["token_ids"] = list(piece.returned_ids)
    if piece.prompt_scores is not None:
        choice["prompt_logprobs"] = prompt_logprobs(piece.prompt_scores)
    return choice


class NamedEvents(NamedTuple):
    """Events that are sent together, each with its `type` as the event's name."""

    events: tuple[dict[str, Any], ...]


Chunk = dict[str, Any] | list[dict[str, Any]] | NamedEvents
"""One event, or several that are sent together."""


class Writer(Protocol):
    """Writes one response, streamed or not, from its pieces in order."""

    usage: Usage

    def chunk(self, piece: Piece) -> Chunk | None:
        """The chunk for a piece; None if there is nothing to send."""

    def skip_sent(self, choice: ResumableChoice) -> None:
        """Counts what another engine has sent of a choice, and writes none of it."""

    def final_chunk(self) -> dict[str, Any] | NamedEvents | None:
        """The chunk after all pieces; None if there is nothing to send."""

    def failure_chunk(self, message: str) -> NamedEvents | None:
        """The events that end a stream that failed after its start; None: an error event ends
        it."""

    def whole_response(self, pieces: Iterable[Piece]) -> dict[str, Any]:
        """The response of a request that is not streamed; do not pass its pieces to `chunk` as
        well."""


@dataclass
class ChunkWriter:
    """Writes chunks that all have the same fields; remembers which choices have begun."""

    shape: ResponseShape
    envelope: Envelope
    usage: Usage
    options: StreamOptions | None
    _begun: set[int] = field(default_factory=set)

    def chunk(self, piece: Piece) -> dict[str, Any] | list[dict[str, Any]] | None:
        """The chunk for a piece, after the chunk that opens its choice if this is its first; None
        if there is nothing to send."""
        opening = None
        content = piece.text or piece.reasoning or piece.calls or _is_empty_text(piece)
        extras = piece.scores or piece.prompt_scores or piece.returned_ids
        sends = bool(content or extras or piece.finish_reason)
        if sends and piece.index not in self._begun:
            opening = self._opening(piece)
            self._begun.add(piece.index)
        self.usage.add(piece)
        if not sends:
            return None
        chunk = self._chunk(self.shape.chunk_choice(piece))
        return chunk if opening is None else [opening, chunk]

    def _opening(self, piece: Piece) -> dict[str, Any] | None:
        choice = self.shape.opening_choice(piece)
        if choice is None:
            return None
        more = {} if self._begun or not self.shape.one_prompt else _prompt_ids(piece)
        return self._chunk(choice, **more)

    def _chunk(self, choice: dict[str, Any], **more: Any) -> dict[str, Any]:
        if self.options and self.options.continuous_usage_stats:
            more["usage"] = self.usage.to_json()
        elif self.options and self.options.include_usage:
            more["usage"] = None
        return self.envelope.around(self.shape.chunk_object, [choice], **more)

    def skip_sent(self, choice: ResumableChoice) -> None:
        """Counts what another engine has sent of a choice, and writes none of it."""
        for piece in choice.sent:
            self.chunk(piece)
        if choice.sent and choice.reader.plan.prompt_logprobs >= 0:
            self._begun.add(choice.reader.plan.index)  # so its opening chunk was sent too

    def final_chunk(self) -> dict[str, Any] | None:
        """The final chunk, with usage and no choices; None unless requested."""
        if not (self.options and self.options.include_usage):
            return None
        return self.envelope.around(self.shape.chunk_object, [], usage=self.usage.to_json())

    def failure_chunk(self, message: str) -> None:
        """None, since an error event ends the stream."""

    def whole_response(self, pieces: Iterable[Piece]) -> dict[str, Any]:
        """The response of a request that is not streamed."""
        answers: dict[int, list[Piece]] = {}
        for piece in pieces:
            self.usage.add(piece)
            answers.setdefault(piece.index, []).append(piece)
        choices = [self.shape.whole_choice(joined(answers[index])) for index in sorted(answers)]
        more = _prompt_ids(answers[0][0]) if self.shape.one_prompt else {}
        if self.shape.one_prompt:  # the first choice's, where vLLM has them too
            more["prompt_logprobs"] = choices[0].get("prompt_logprobs")
        usage = self.usage.to_json()
        return self.envelope.around(self.shape.whole_object, choices, usage=usage, **more)


def chunk_writer(
    shape: ResponseShape,
) -> Callable[[GenerationRequest, Envelope, Usage], ChunkWriter]:
    """A function that makes the writer of one response in this shape."""
    return lambda request, envelope, usage: ChunkWriter(
        shape, envelope, usage, request.stream_options
    )


def is_light(pieces: Sequence[Piece]) -> bool:
    """Whether the pieces can be encoded on the event loop without blocking it for long."""
    scored = sum(len(piece.scores or ()) + len(piece.prompt_scores or ()) for piece in pieces)
    return len(pieces) + scored <= _LIGHT_PARTS


def completion_logprobs(scores: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
    """Four parallel lists, as OpenAI's format has them; `top_logprobs` always includes the sampled
    token."""
    if scores is None:
        return None
    return {
        "tokens": [score.token.key for score in scores],
        "token_logprobs": [score.logprob for score in scores],
        "top_logprobs": [_written(_by_key(score)) for score in scores],
        "text_offset": [score.offset for score in scores],
    }


def chat_logprobs(scores: Sequence[ScoredToken] | None) -> dict[str, Any] | None:
    """One object for each token, as in chat completions."""
    if scores is None:
        return None
    content = [
        _written(
            {
                **_named(score.token, score.logprob),
                "top_logprobs": [_named(token, logprob) for token, logprob in score.top],
            }
        )
        for score in scores
    ]
    return {"content": content, "refusal": None}


def prompt_logprobs(scores: Sequence[ScoredToken]) -> list[msgspec.Raw]:
    """Objects, one for each token of the prompt, by token id: the token itself and the most
    probable ones at its place."""
    return [_written(None if score.logprob is None else _by_id(score)) for score in scores]


def _written(value: dict[str, Any] | None) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _by_key(score: ScoredToken) -> dict[str, float] | None:
    if score.logprob is None:
        return None
    return {token.key: logprob for token, logprob in score.top} | {score.token.key: score.logprob}


def _by_id(score: ScoredToken) -> dict[str, Any]:
    best = {
        str(token.token_id): _ranked(token, logprob, rank)
        for rank, (token, logprob) in enumerate(score.top, 1)
    }
    own = {str(score.token.token_id): _ranked(score.token, score.logprob, score.rank)}
    return own | best


def _ranked(token: TokenText, logprob: float | None, rank: int | None) -> dict[str, Any]:
    return {"logprob": logprob, "rank": rank, "decoded_token": token.text}


def _named(token: TokenText, logprob: float | None) -> dict[str, Any]:
    utf8 = None if token.utf8 is None else list(token.utf8)
    return {"token": token.text, "logprob": logprob, "bytes": utf8}
