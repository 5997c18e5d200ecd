"""`POST /hand-back`: the router asks for requests that this engine has not begun, as another engine
has room for them. Those that leave end with 503 and a code of their own, and the router sends them
elsewhere; one that the engine has begun meanwhile is answered here."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final, Literal

from fastapi import Request
from pydantic import Field
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.private_calls import MAX_HAND_BACK

from sluice_runtime.server.body import parse_body, read_body, refuse_heavy
from sluice_runtime.server.fields import RequestModel
from sluice_runtime.server.service import Service

MAX_BYTES: Final = 64 * 1024


class HandBackRequest(RequestModel):
    """`POST /hand-back`."""

    ids: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(max_length=MAX_HAND_BACK)
    """Values of `x-request-id`, in the order in which the requests are to leave."""
    most: int = Field(ge=0, le=MAX_HAND_BACK)
    """Requests that may leave."""
    waits_for: Literal["mixed", "prefill", "decode"]
    """Role of the engine in whose queue they are: this one, or that of their prompts."""


class HandBacks:
    """Hands requests back, for one call after the other."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()

    async def handle(self, request: Request) -> int:
        """How many requests leave.

        Raises:
            MistakenError: 403, the call is not signed.
            InvalidRequestError: it cannot be read.
            UnavailableError: the model is not loaded.
        """
        content = await read_body(request, MAX_BYTES)
        self._service.signatures.check_private(request, content)
        refuse_heavy(HandBackRequest, content, prompt_tokens=0)
        call = parse_body(HandBackRequest, content)
        async with self._lock:
            return await self._service.client.hand_back(call.ids, call.most, Role(call.waits_for))
