"""Runs the choices of one request on the engine, and yields their text piece by piece.

Closing a generator early aborts what still runs. Knows neither JSON nor HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final

from sluice_runtime.messages import Generate, PrefillEngine
from sluice_runtime.server.answer_text import AnswerText, Piece
from sluice_runtime.server.engine_client import CREDIT_TOKENS, EngineClient, TokenStream
from sluice_runtime.server.prompts import ChoicePlan
from sluice_runtime.server.token_text import TokenTexts
from sluice_runtime.server.tools.calls import CallParser, whole_calls
from sluice_runtime.tokenizer import Tokenizer

_MERGED_PIECES: Final = 64
"""Pieces of all choices that may wait for the reader."""


@dataclass(frozen=True)
class Caller:
    """Where a request comes from, and when it arrived."""

    arrival_seconds: float
    routing_key: str = ""
    names: tuple[str, ...] = ()
    """Names by which the request may be aborted."""
    prefill: PrefillEngine | None = None
    """Who computes the prompts, if that is another engine."""


@dataclass(frozen=True)
class Generator:
    """Starts plans on the engine and yields their pieces as they come."""

    client: EngineClient
    tokenizer: Tokenizer
    texts: TokenTexts
    draw_id: Callable[[], str]
    """Returns an id that is unique in this process."""

    async def pieces(
        self, plans: Sequence[ChoicePlan], caller: Caller
    ) -> AsyncGenerator[Piece, None]:
        """The pieces of all plans, in the order in which they come.

        Raises:
            RequestError, GenerationFailedError: one of them failed; the others are aborted.
        """
        messages = [self._message(plan, caller) for plan in plans]
        streams = self.client.open_all(messages, caller.names)
        try:
            choices = [
                self._choice(stream, plan) for stream, plan in zip(streams, plans, strict=True)
            ]
            async with aclosing(choices[0] if len(choices) == 1 else _merged(choices)) as pieces:
                async for piece in pieces:
                    yield piece
        finally:
            for stream in streams:
                self.client.close(stream)

    async def _choice(self, stream: TokenStream, plan: ChoicePlan) -> AsyncGenerator[Piece, None]:
        """The pieces of one choice; its pages are freed as soon as it ends."""
        answer = AnswerText(plan, self.tokenizer, self.texts)
        parser = plan.reading.parser() if plan.reading else None
        while True:
            delta = await stream.next()
            if delta.prompt_logprobs is None:
                piece = answer.push(delta)
            else:  # thousands of tokens to name
                piece = await asyncio.to_thread(answer.push, delta)
            if parser is not None:
                piece = _with_calls(piece, parser)
            if piece.finish_reason is not None:
                self.client.close(stream)
            yield piece
            if piece.finish_reason is not None:
                return

    def _message(self, plan: ChoicePlan, caller: Caller) -> Generate:
        return Generate(
            request_id=self.draw_id(),
            prompt_ids=plan.prompt_ids,
            max_tokens=plan.max_tokens,
            sampling=plan.sampling,
            stop_token_ids=plan.stop_token_ids,
            ignore_eos=plan.ignore_eos,
            arrival_seconds=caller.arrival_seconds,
            credit_tokens=CREDIT_TOKENS,
            priority=plan.priority,
            grammar=plan.grammar,
            routing_key=caller.routing_key,
            logprobs=plan.logprobs,
            prompt_logprobs=plan.engine_prompt_logprobs,
            cache_salt=plan.cache_salt,
            prefill=caller.prefill,
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
