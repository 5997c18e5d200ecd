"""Runs the choices of one request on the engine, and yields their text piece by piece.

Closing a generator early aborts what still runs. Knows neither JSON nor HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from sluice_runtime.model.tokenizer import Tokenizer
from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.choice import BegunChoice, ChoiceReader
from sluice_runtime.server.engine_client import CREDIT_TOKENS, EngineClient, TokenStream
from sluice_runtime.server.prompts import ChoicePlan
from sluice_runtime.server.token_text import TokenTexts
from sluice_runtime.wire.messages import Generate, PrefillEngine

_MERGED_PIECES: Final = 64
"""Pieces of all choices that may wait for the reader."""


@dataclass(frozen=True)
class Caller:
    """Where a request comes from, and when it arrived."""

    arrival_seconds: float
    tenant: str = ""
    """As in `Generate`."""
    routing_key: str = ""
    names: tuple[str, ...] = ()
    """Names by which the request may be aborted."""
    prefill: PrefillEngine | None = None
    """Who computes the prompts, if that is another engine."""
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
        self, choices: Sequence[BegunChoice], caller: Caller
    ) -> AsyncGenerator[Piece, None]:
        """The pieces that the engine generates for all choices, in the order in which they come.

        Raises:
            RequestError, GenerationFailedError: one of them failed; the others are aborted.
        """
        running = [choice for choice in choices if not choice.ended]
        messages = [self._message(choice, caller) for choice in running]
        streams = self.client.open_all(messages, caller.names) if running else []
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
                self.client.close(stream)
            yield piece
            if piece.finish_reason is not None:
                return

    def _message(self, choice: BegunChoice, caller: Caller) -> Generate:
        plan = choice.reader.plan
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
            tenant=caller.tenant,
            logprobs=plan.logprobs,
            prompt_logprobs=plan.engine_prompt_logprobs,
            cache_salt=plan.cache_salt,
            adapter=plan.adapter,
            prefill=caller.prefill,
            traceparent=caller.traceparent,
            generated_ids=list(choice.ids),
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
