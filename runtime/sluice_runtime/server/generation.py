"""Runs the choices of one request on the engine, and yields their text piece by piece.

Closing a generator early aborts the choices that still run. A `ChoiceReader` turns the engine's
deltas of one choice into pieces. Another engine's tokens can be replayed in a reader, which then
is in the state that the other engine's reader was in.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace
from sluice_contract.wire.private_calls import CallHead

from sluice_runtime.model.tokenizer import Tokenizer
from sluice_runtime.server.answer_text import AnswerText, Piece
from sluice_runtime.server.choice_plans import ChoicePlan
from sluice_runtime.server.engine_client import EngineClient
from sluice_runtime.server.reasoning.parser import ReasoningParser
from sluice_runtime.server.token_stream import TokenStream
from sluice_runtime.server.token_text import TokenTexts
from sluice_runtime.server.tools.calls import CallParser
from sluice_runtime.wire.messages import (
    FinishReason,
    Generate,
    PrefillEngine,
    TokenDelta,
    TokenLogprob,
)

_MERGED_PIECES: Final = 64
"""Pieces of all choices that may wait for the reader."""


@dataclass(frozen=True)
class Caller:
    """Where a request comes from, and when it arrived."""

    arrival_seconds: float
    """Time of the arrival at this engine."""
    head: CallHead
    """History of the request, from the router."""
    tenant: str = ""
    """Tenant of the request, as in `Generate`."""
    routing_key: str = ""
    names: tuple[str, ...] = ()
    """Names by which the request may be aborted."""
    router_id: str = ""
    """`x-request-id` of the request."""
    prefill: PrefillEngine | None = None
    """The engine that computes the prompts, if it is another one."""
    traceparent: str = ""
    """As it came; empty if it is none."""


@dataclass(frozen=True)
class Generator:
    """Starts plans on the engine and yields their pieces as they come."""

    client: EngineClient
    tokenizer: Tokenizer
    texts: TokenTexts
    draw_id: Callable[[], str]
    """Returns an id that is unique in this process."""

    def reader(self, plan: ChoicePlan, response_id: str) -> ChoiceReader:
        """A reader for a new choice of this response."""
        return ChoiceReader(plan, self.tokenizer, self.texts, f"{response_id}/{plan.index}")

    async def pieces(
        self, choices: Sequence[ResumableChoice], caller: Caller
    ) -> AsyncGenerator[Piece, None]:
        """The pieces that the engine generates for all choices, in the order in which they come.

        Raises:
            RequestError, GenerationFailedError: one of them failed; the others are aborted.
        """
        running = [choice for choice in choices if not choice.ended]
        messages = [self._message(choice, caller) for choice in running]
        streams = (
            self.client.open_all(messages, caller.names, router_id=caller.router_id)
            if running
            else []
        )
        try:
            drawn = [
                self._choice(stream, choice.reader)
                for stream, choice in zip(streams, running, strict=True)
            ]
            async with aclosing(drawn[0] if len(drawn) == 1 else _merged(drawn)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            for stream in streams:
                self.client.close(stream)

    async def _choice(
        self, stream: TokenStream, reader: ChoiceReader
    ) -> AsyncGenerator[Piece, None]:
        """The pieces of one choice; its pages are freed as soon as it ends."""
        while True:
            delta = await stream.next()
            if delta.prompt_logprobs is None:
                piece = reader.push(delta)
            else:  # thousands of tokens to name
                piece = await asyncio.to_thread(reader.push, delta)
            if piece.finish_reason is not None:
                self.client.close(stream, answered=True)
            yield piece
            if piece.finish_reason is not None:
                return

    def _message(self, choice: ResumableChoice, caller: Caller) -> Generate:
        plan = choice.reader.plan
        return Generate(
            request_id=self.draw_id(),
            prompt_ids=plan.prompt_ids,
            max_tokens=plan.max_tokens,
            sampling=plan.sampling,
            stop_token_ids=plan.stop_token_ids,
            ignore_eos=plan.ignore_eos,
            arrival_seconds=caller.arrival_seconds - caller.head.waited_seconds,
            credit_tokens=self.client.credit_tokens,
            priority=plan.priority,
            grammar=plan.grammar,
            routing_key=caller.routing_key,
            tenant=caller.tenant,
            logprobs=plan.logprobs,
            prompt_logprobs=plan.engine_prompt_logprobs,
            cache_salt=plan.cache_salt,
            adapter=plan.adapter,
            prefill=caller.prefill,
            traceparent=caller.traceparent,
            generated_ids=list(choice.ids),
            moved=caller.head.moved,
            prompt_counted=caller.head.prompt_counted,
            waited_seconds=caller.head.waited_seconds,
        )


async def _merged(choices: Sequence[AsyncGenerator[Piece, None]]) -> AsyncGenerator[Piece, None]:
    """Merges several iterators; the first failure ends all."""
    queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue(_MERGED_PIECES)

    async def pump(choice: AsyncGenerator[Piece, None]) -> None:
        try:
            async for piece in choice:
                await queue.put(piece)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(choice)) for choice in choices]
    try:
        running = len(tasks)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
class ResumableChoice:
    """A choice, new or with what another engine generated of it."""

    reader: ChoiceReader
    ids: Sequence[int] = ()
    pieces: tuple[Piece, ...] = ()
    """The text of the ids, in at most two pieces: the last token may end the answer."""
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
        """The final piece, if the client of a stream does not have it."""
        return self.pieces[-1:] if self.ended and not self.finished else ()

    @property
    def sent(self) -> tuple[Piece, ...]:
        """Pieces that the client of a stream has."""
        return self.pieces[: len(self.pieces) - len(self.unsent)]


@dataclass(frozen=True)
class EarlierTokens:
    """Tokens of one choice that another engine generated."""

    ids: Sequence[int]
    scores: Sequence[TokenLogprob] = ()
    """Logprobs of the ids, one for each, or none at all."""
    cached_tokens: int = 0
    finished: bool = field(default=False, kw_only=True)


def replay(reader: ChoiceReader, drawn: EarlierTokens) -> ResumableChoice | None:
    """The choice where the other engine left it; None if the ids continue after its end."""
    ids, plan = drawn.ids, reader.plan
    pieces: list[Piece] = []
    if not ids:
        return ResumableChoice(reader, finished=drawn.finished)
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
    return ResumableChoice(reader, ids, tuple(pieces), drawn.finished)


def _end(plan: ChoicePlan, ids: Sequence[int]) -> FinishReason | None:
    """How the engine would have ended an answer of these ids."""
    if ids[-1] in plan.stop_token_ids:
        return "stop"
    return "length" if len(ids) >= plan.max_tokens else None


def _with_reasoning(piece: Piece, parser: ReasoningParser) -> Piece:
    """The piece with its reasoning separated from its text."""
    parts = [parser.push(piece.text)]
    if piece.finish_reason is not None:
        parts.append(parser.finish())
    return replace(
        piece,
        text="".join([part.text for part in parts]),
        reasoning="".join([part.reasoning for part in parts]),
        reasoning_tokens=parser.count(piece.starts),
        in_text=parser.over,
    )


def _with_calls(piece: Piece, parser: CallParser) -> Piece:
    """The piece with its tool calls parsed. A choice that stops and has calls finishes with
    `tool_calls`, unless a stop string cut the last one."""
    if piece.finish_reason is None:
        parsed = parser.push(piece.text)
        return replace(piece, text=parsed.text, calls=parsed.calls, in_text=False)
    cut = piece.finish_reason == "length" or piece.stop is not None
    parsed = parser.finish(piece.text, cut=cut)
    called = parser.calls > 0 and piece.finish_reason == "stop" and not parser.open
    return replace(
        piece,
        text=parsed.text,
        calls=parsed.calls,
        finish_reason="tool_calls" if called else piece.finish_reason,
        in_text=False,
    )
