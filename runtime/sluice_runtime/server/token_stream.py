"""The stream of one choice's deltas from the engine process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from itertools import chain
from typing import Final

from msgspec.structs import replace

from sluice_runtime.errors import InvalidRequestError, SluiceRuntimeError
from sluice_runtime.server.failures import REFUSALS, GenerationFailedError
from sluice_runtime.wire.messages import Credit, ToEngine, TokenDelta

CREDIT_TOKENS: Final = 1024
"""Default of the tokens of one choice that the engine process may send before the reader has taken
them."""
_FAILED: Final = ("error", "abort")
_JOINED_TOKENS: Final = 16
"""Tokens from which a delta is joined with no further one: a slow client's next event stays short.
"""


class TokenStream:
    """The deltas of one choice; has one reader, which closes it."""

    def __init__(
        self,
        request_id: str,
        send: Callable[[ToEngine], None],
        grammar_field: str | None = None,
        names: Collection[str] = (),
        router_id: str = "",
        credit_tokens: int = CREDIT_TOKENS,
    ) -> None:
        """`credit_tokens`: the request's, which is granted again in halves."""
        self.request_id = request_id
        self.router_id = router_id
        """The request's `x-request-id` if the router has set it, so that no client chose it."""
        self.names = names
        """Names by which a client may abort the request."""
        self._grammar_field = grammar_field
        self._send = send
        self._credit_tokens = credit_tokens
        self._deltas: deque[TokenDelta | SluiceRuntimeError] = deque()
        self.begun = False
        """Whether a token, or its end, has come."""
        self._arrived = asyncio.Event()
        self._taken_tokens = 0
        self.ended = False
        """Whether the terminal delta or a failure was read."""

    async def next(self) -> TokenDelta:
        """The next delta, with those that have arrived behind it; the one with a finish reason is
        the last.

        Raises:
            GenerationFailedError: the engine ended this request with an error.
            InvalidRequestError: its grammar cannot be used.
            OverloadedError: the engine's queue is full.
            RequestOutOfMemoryError: a step with this request ran out of memory.
            PrefillFailedError: the engine that computes its prompt failed.
            PrefillUnavailableError: that engine did not accept the request.
            HandedBackError: this engine gives the request back, so that another one can serve it.
            EngineDiedError: the engine process has ended.
            UnavailableError: the engine drains, or this server has been told to end at once.
        """
        while not self._deltas:
            self._arrived.clear()
            await self._arrived.wait()
        delta = self._joined()
        self.ended = isinstance(delta, SluiceRuntimeError) or delta.finish_reason is not None
        if isinstance(delta, SluiceRuntimeError):
            raise delta
        if delta.refusal == "invalid":
            raise InvalidRequestError(delta.error or "invalid", self._grammar_field)
        if delta.refusal is not None:
            raise REFUSALS[delta.refusal](delta.error or "the engine refused the request")
        if delta.finish_reason in _FAILED:
            raise GenerationFailedError(delta.error or "the engine gave the request up")
        self._grant(len(delta.token_ids))
        return delta

    def put(self, delta: TokenDelta | SluiceRuntimeError) -> None:
        """Adds a delta, or the failure that ends the stream; the engine client calls this."""
        self.begun = True
        self._deltas.append(delta)
        self._arrived.set()

    def _joined(self) -> TokenDelta | SluiceRuntimeError:
        """The first delta, joined with those that have arrived behind it, or the failure."""
        first = self._deltas.popleft()
        if not self._deltas or isinstance(first, SluiceRuntimeError):
            return first
        deltas, tokens = [first], len(first.token_ids)
        while self._deltas and tokens < _JOINED_TOKENS:
            after = self._deltas[0]
            if isinstance(after, SluiceRuntimeError) or after.finish_reason in _FAILED:
                break  # the tokens before it are part of the answer
            deltas.append(after)
            tokens += len(after.token_ids)
            self._deltas.popleft()
        return replace(
            first,
            token_ids=tuple(chain.from_iterable([delta.token_ids for delta in deltas])),
            finish_reason=deltas[-1].finish_reason,
            logprobs=tuple(chain.from_iterable([delta.logprobs for delta in deltas])),
        )

    def _grant(self, tokens: int) -> None:
        self._taken_tokens += tokens
        if not self.ended and 2 * self._taken_tokens >= self._credit_tokens:
            self._send(Credit(self.request_id, self._taken_tokens))
            self._taken_tokens = 0
