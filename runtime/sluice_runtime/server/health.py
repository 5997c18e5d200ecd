"""The question whether the engine draws tokens, asked of the engine itself. Knows no HTTP."""

from __future__ import annotations

import asyncio
import secrets
from typing import Final

from sluice_runtime.errors import UnavailableError
from sluice_runtime.messages import Generate, Sampling
from sluice_runtime.server.engine_client import EngineClient
from sluice_runtime.server.protocol import MOST_PRIORITY

TOKEN_SECONDS: Final = 20.0
"""How long one token may take, behind whatever the engine runs."""


async def draw_token(client: EngineClient, now: float, seconds: float = TOKEN_SECONDS) -> None:
    """Returns once a token was drawn; `now` is the engine's clock.

    Raises:
        UnavailableError: there is no engine, or no token came in time.
        OverloadedError, GenerationFailedError: what any request would hear.
    """
    generate = Generate(
        request_id=f"health-{secrets.token_hex(8)}",
        prompt_ids=[0],
        max_tokens=1,
        sampling=Sampling(temperature=0.0),
        arrival_seconds=now,
        priority=MOST_PRIORITY,
    )
    stream = client.open(generate)
    try:
        async with asyncio.timeout(seconds):
            await stream.next()
    except TimeoutError:
        raise UnavailableError(f"the engine drew no token within {seconds:g} s") from None
    finally:
        client.close(stream)
