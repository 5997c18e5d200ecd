"""Signed calls that only the service's router makes: to take another role, and to hand back
requests.

Before it takes another role, an engine finishes its work: prompts for other engines, and answers.
Work that takes too long is handed back, and the router lets another engine continue it. This module
knows nothing about pools.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Annotated, Final, Literal, TypeVar

from fastapi import Request
from pydantic import Field
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.private_calls import MAX_HAND_BACK

from sluice_runtime.errors import InvalidRequestError, UnavailableError
from sluice_runtime.server.body import parse_body, read_body, refuse_heavy
from sluice_runtime.server.fields import RequestModel
from sluice_runtime.server.service import Identity, Service

LAME_DUCK_SECONDS: Final = 1.25
"""Time for which new work is still accepted: longer than the interval at which routers poll the
load."""
HANDED_BACK: Final = "the engine takes another role; another engine can go on with this answer"

MAX_HAND_BACK_BYTES: Final = 64 * 1024

_log = logging.getLogger(__name__)
CallT = TypeVar("CallT", bound=RequestModel)


class RoleRequest(RequestModel):
    """`POST /role`."""

    role: Literal["prefill", "decode"]
    epoch: str = Field(min_length=1, max_length=64)
    """Epoch from the engine's load report. It changes with each role, so the call is valid for this
    engine only, and only once."""
    drain_seconds: float | None = Field(default=None, ge=0, le=86_400)
    """Time after which everything still running is handed back. Default: the engine's
    drainSeconds."""


class HandBackRequest(RequestModel):
    """`POST /hand-back`."""

    ids: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(max_length=MAX_HAND_BACK)
    """Values of `x-request-id`, in the order in which requests should leave."""
    most: int = Field(ge=0, le=MAX_HAND_BACK)
    """Number of requests that may leave."""
    waits_for: Literal["mixed", "prefill", "decode"]
    """Role of the engine in whose queue the requests wait: this engine, or the one that computes
    their prompts."""


async def _signed_call(
    service: Service, request: Request, kind: type[CallT], max_bytes: int
) -> CallT:
    content = await read_body(request, max_bytes)
    service.signatures.check_private(request, content)
    refuse_heavy(kind, content, prompt_tokens=0)
    return parse_body(kind, content)


class HandBackHandler:
    """Hands requests back; handles one call at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()

    async def handle(self, request: Request) -> int:
        """Hands back requests; returns how many leave.

        Raises:
            MistakenError: 403, the call is not signed.
            InvalidRequestError: the body cannot be read.
            UnavailableError: the model is not loaded.
        """
        call = await _signed_call(self._service, request, HandBackRequest, MAX_HAND_BACK_BYTES)
        async with self._lock:
            return await self._service.client.hand_back(call.ids, call.most, Role(call.waits_for))


class RoleChanger:
    """Changes the engine's role; makes one change at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()

    async def handle(self, request: Request) -> tuple[Role, float]:
        """Changes the role; returns the new role and the seconds that the change took.

        Raises:
            MistakenError: 403, the call is not signed.
            InvalidRequestError: the engine cannot have this role, or the epoch is not its own.
            UnavailableError: the engine loads, drains, or has failed.
        """
        max_bytes = self._service.identity.max_body_bytes
        call = await _signed_call(self._service, request, RoleRequest, max_bytes)
        role, seconds = Role(call.role), call.drain_seconds
        self._check(role)
        self._check_epoch(call.epoch)
        async with self._lock:
            if role is self._service.role:
                return role, 0.0
            self._check_epoch(call.epoch)
            return role, await self._take(
                role, self._service.identity.drain_seconds if seconds is None else seconds
            )

    def _check(self, role: Role) -> None:
        current = self._service.role
        why = None if role is current else self._keeps_role(self._service.identity)
        if why is not None:
            allowed = "none" if current is Role.MIXED else json.dumps(current.value)
            raise InvalidRequestError(
                f"role: {json.dumps(role.value)} is not allowed; allowed: {allowed}, as {why}",
                "role",
            )
        if not self._service.ready:
            raise UnavailableError("the engine loads or drains: it takes no other role now")

    def _check_epoch(self, epoch: str) -> None:
        ready = self._service.client.ready
        assert ready is not None, "an engine that is not ready is refused before"
        if epoch != ready.epoch:
            value, own = json.dumps(epoch), json.dumps(ready.epoch)
            allowed = f"{own}, that of this engine's load report"
            message = f"epoch: {value} is not allowed; allowed: {allowed}"
            raise InvalidRequestError(message, "epoch")

    @staticmethod
    def _keeps_role(identity: Identity) -> str | None:
        """Reason why this engine can never change its role; None if it can."""
        if identity.role is Role.MIXED or identity.kv_transfer is None:
            return 'this engine\'s role is "mixed"'
        if (ranks := identity.tensor_parallel_size) > 1:
            return f"tensorParallelSize is {ranks}, and not 1"
        if identity.host_cache:
            return "it has a hostCache, which decode engines cannot have"
        # Mooncake takes seconds to close, and late reads of Mooncake or NIXL may still write.
        backend = identity.kv_transfer.backend_or_default
        return None if backend == "TCP" else f"kvTransfer.backend is {backend}, and not TCP"

    async def _take(self, role: Role, drain_seconds: float) -> float:
        service, client = self._service, self._service.client
        began, before = service.clocks.monotonic(), service.role
        _log.info("takes role %s: %d requests in progress", role, service.gate.in_progress)
        service.changes_role = True
        taken = asyncio.ensure_future(client.take_role(role, LAME_DUCK_SECONDS, drain_seconds))
        try:
            await asyncio.wait({taken}, timeout=max(drain_seconds, LAME_DUCK_SECONDS))
            if not taken.done():
                client.end_all(UnavailableError(HANDED_BACK))
            await taken
        finally:
            taken.cancel()
            service.changes_role = False
        service.role_taken()
        seconds = service.clocks.monotonic() - began
        _log.info("role %s instead of %s, after %.2f s", role, before, seconds)
        return seconds
