"""Calls of the router itself to an engine: signed, with a request id of their own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import aiohttp
from sluice_contract.http_errors import REQUEST_ID_HEADER
from sluice_contract.wire.handover import Bound, Keys
from sluice_contract.wire.private_calls import PRIVATE_HEADER, signed_call

from sluice_router.attempts import read_at_most
from sluice_router.engines import EngineState

_ANSWER_BYTES: Final = 4096
_CONNECT_SECONDS: Final = 2.0


@dataclass(frozen=True)
class EngineCalls:
    """Posts bodies to routes that only the router may use."""

    session: aiohttp.ClientSession
    keys: Keys
    unix_clock: Callable[[], float]
    draw_id: Callable[[], str]

    async def post(
        self, engine: EngineState, path: str, body: bytes, answer_seconds: float
    ) -> tuple[int, str]:
        """The status of the answer, and its text.

        Raises:
            aiohttp.ClientError, OSError: there is none, or it took longer.
            ValueError: there is no key.
        """
        limit = aiohttp.ClientTimeout(total=answer_seconds, sock_connect=_CONNECT_SECONDS)
        url = engine.endpoint.url + path
        headers = self._headers(path, body)
        async with self.session.post(url, data=body, headers=headers, timeout=limit) as answer:
            text = (await read_at_most(answer, _ANSWER_BYTES)).decode(errors="replace")
        return answer.status, text

    def _headers(self, path: str, body: bytes) -> dict[str, str]:
        request_id = self.draw_id()
        bound = Bound(path, hashlib.sha256(body).hexdigest())
        signed = signed_call(self.keys()[0], request_id, bound, self.unix_clock())
        return {REQUEST_ID_HEADER: request_id, PRIVATE_HEADER: signed}
