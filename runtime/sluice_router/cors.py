"""CORS: answers browsers' preflights, and says which pages may read an answer.

A browser sends a preflight without the API key, so it is answered before keys are looked at. Keys
travel in `Authorization`, never in cookies, so credentials are not allowed. Knows no routes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web
from sluice_contract.config.cors import (
    ANY_ORIGIN,
    METHODS,
    PREFLIGHT_SECONDS,
    READABLE_HEADERS,
    Cors,
)

ORIGIN: Final = "Origin"
_ASKED_METHOD: Final = "Access-Control-Request-Method"
_ASKED_HEADERS: Final = "Access-Control-Request-Headers"
_ALLOWED_ORIGIN: Final = "Access-Control-Allow-Origin"


class CorsHeaders:
    """The headers for one setting."""

    def __init__(self, cors: Cors) -> None:
        self._origins = frozenset(cors.allowed_origins)
        self._any = ANY_ORIGIN in self._origins

    def preflight(self, request: web.Request) -> web.Response | None:
        """The answer to a preflight; None for any other request. It allows whatever headers are
        asked for: the routes ignore those that they do not know."""
        if request.method != "OPTIONS" or _ASKED_METHOD not in request.headers:
            return None
        headers = {
            "Access-Control-Allow-Methods": ", ".join(METHODS),
            "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
            "Vary": f"{_ASKED_METHOD}, {_ASKED_HEADERS}",
        }
        if asked := request.headers.get(_ASKED_HEADERS):
            headers["Access-Control-Allow-Headers"] = asked
        return web.Response(status=204, headers=headers)

    def of_answer(self, given: Mapping[str, str]) -> dict[str, str]:
        """Headers of the answer to a request with the headers `given`; none to other origins."""
        origin = given.get(ORIGIN)
        if origin is None or not (self._any or origin in self._origins):
            return {}
        return {
            _ALLOWED_ORIGIN: ANY_ORIGIN if self._any else origin,
            "Access-Control-Expose-Headers": ", ".join(READABLE_HEADERS),
        }

    @property
    def varies(self) -> bool:
        """Whether an answer depends on the origin, which caches must know."""
        return not self._any
