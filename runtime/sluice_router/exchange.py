"""Notes of a request on its way, for its log line, its counters and its span."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from aiohttp import web

from sluice_router.errors import RouterError

_KEY: Final[Any] = web.RequestKey("exchange", object) if hasattr(web, "RequestKey") else "exchange"
"""Key of a request: a plain string before aiohttp 3.14, which warns of such keys."""


@dataclass(slots=True)
class Exchange:
    """Notes of one request; fields are empty until their value is known."""

    head_bytes: int
    """Bytes of the request's head."""
    id: str = ""
    """The request's id, the client's or ours."""
    trace: str = ""
    """Traceparent of the request, the client's or ours."""
    start_seconds: float = 0.0
    """When the request came, by the router's clock."""
    tenant: str | None = None
    """The tenant whose API key it has, where keys are required."""
    engine: str | None = None
    """The engine that answers it, and the one that computed its prompt if that is another."""
    resumed: bool = False
    """Whether a second engine continues its answer, or starts it again."""
    refusal: str | None = None
    """The code of an engine's error that was passed on as the answer."""
    failure: RouterError | None = None
    """The error that ended it, also after a head with status 200. Without its traceback, whose
    frames hold what the client sent: aiohttp keeps a connection's last request."""


def exchange_of(request: web.BaseRequest) -> Exchange:
    """Notes of the request."""
    exchange: Exchange = request[_KEY]
    return exchange


def begin_exchange(request: web.BaseRequest, head_bytes: int) -> None:
    """Begin the notes of a request that has just come."""
    request[_KEY] = Exchange(head_bytes)
