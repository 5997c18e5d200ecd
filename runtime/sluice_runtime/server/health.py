"""Checks that the engine draws tokens, for `GET /health_generate`.

Not in `engine_client`, which is long enough, because no client's request needs it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final

from sluice_contract.config.router import MAX_PRIORITY

from sluice_runtime.errors import OverloadedError, UnavailableError
from sluice_runtime.server.engine_client import EngineClient
from sluice_runtime.server.token_stream import TokenStream
from sluice_runtime.wire.messages import Generate, Sampling

TOKEN_SECONDS: Final = 20.0
"""How long one token may take."""


class TokenCheck:
    """Runs one check at a time. Calls during a check share its result, because anyone can call the
    route."""

    def __init__(self, client: EngineClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._check: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        """See `draw_token`."""
        if self._check is None or self._check.done():
            self._check = asyncio.ensure_future(draw_token(self._client, self._clock()))
            self._check.add_done_callback(_retrieve)  # all callers may have left
        await asyncio.shield(self._check)


async def draw_token(client: EngineClient, now: float, seconds: float = TOKEN_SECONDS) -> None:
    """Returns once the engine has drawn a token for any request. Sends a request of its own, in
    case there is no other; it has the lowest priority and counts in no metric. `now`: time on the
    engine's clock.

    Raises:
        UnavailableError: there is no engine, or no token was drawn in time.
        GenerationFailedError: the engine could not compute the token.
    """
    probe: TokenStream | None = None
    with suppress(OverloadedError):  # then other requests' tokens are enough
        probe = client.open(_probe(now), observed=False)
    try:
        async with asyncio.timeout(seconds):
            await _first_done(client.token_drawn(), *([probe.next()] if probe else []))
    except TimeoutError:
        raise UnavailableError(f"the engine drew no token within {seconds:g} s") from None
    finally:
        if probe:
            client.close(probe)


def _retrieve(check: asyncio.Task[None]) -> None:
    if not check.cancelled():
        check.exception()


def _probe(now: float) -> Generate:
    return Generate(
        request_id=f"health-{secrets.token_hex(8)}",
        prompt_ids=[0],
        max_tokens=1,
        sampling=Sampling(temperature=0.0),
        arrival_seconds=now,
        priority=-MAX_PRIORITY,
    )


async def _first_done(*awaited: Coroutine[Any, Any, object]) -> None:
    """Returns when the first of `awaited` ends; raises its error."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in awaited]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
