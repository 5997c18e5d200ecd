"""One attempt: sends a request to one engine, and says why it did not answer if it did not.

Counts no failure and picks no engine. Knows nothing of the client's connection.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal

import aiohttp
import msgspec
from sluice_contract.engine_http import (
    ENGINE_DIED,
    GRAMMAR_UNAVAILABLE,
    OUT_OF_MEMORY,
    REQUEST_ID_HEADER,
)
from sluice_contract.handover import PREFILL_FAILED, PREFILL_HEADER
from yarl import URL

from sluice_router import sse
from sluice_router.edge import response_headers
from sluice_router.engines import EngineState
from sluice_router.errors import (
    JSON_CONTENT_TYPE,
    EngineFailedError,
    EngineRefusedError,
    RouterError,
)
from sluice_router.memory import SMALL_BYTES, Body
from sluice_router.targets import Target
from sluice_router.upstream import read_at_most

RetryReason = Literal[
    "connect", "broken", "unavailable", "queue_full", "uncompiled", "out_of_memory", "prefill"
]
SignPrefill = Callable[[EngineState, str], str]
"""Value of `PREFILL_HEADER` that names this prefill engine, for the request with that id."""

RETRIED_STATUSES: Final[dict[int, RetryReason]] = {
    HTTPStatus.TOO_MANY_REQUESTS: "queue_full",
    HTTPStatus.BAD_GATEWAY: "broken",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
}
REASON_OF_CODE: Final[dict[str | None, RetryReason]] = {
    ENGINE_DIED: "broken",
    GRAMMAR_UNAVAILABLE: "uncompiled",
    OUT_OF_MEMORY: "out_of_memory",
    PREFILL_FAILED: "prefill",
}
"""Where the code of a 503 says more than the status."""
_REFUSAL_BYTES: Final = 65_536
"""Length to which a refusal is cut before it is passed on."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as engines get it. `path` is still percent-encoded."""

    method: str
    path: str
    headers: dict[str, str]
    body: Body | None


class Reply:
    """An engine's answer from its first byte on."""

    def __init__(self, target: Target, response: aiohttp.ClientResponse, first: bytes) -> None:
        self.target = target
        self.status = response.status
        self.headers = response_headers(response.headers)
        self.streams_events = response.content_type == sse.CONTENT_TYPE
        self.first = first
        self._response = response

    async def read(self) -> bytes:
        """The bytes that came since; empty at the end.

        Raises:
            EngineFailedError: the engine broke off.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            name = self.target.engine.endpoint.name
            raise EngineFailedError(f"engine {name} broke off") from error

    def close(self) -> None:
        """Keep the connection if the answer was read to its end; else close it, so that the engine
        aborts the request."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class AttemptFailedError(Exception):
    """One engine did not answer; another one might."""

    def __init__(self, reason: RetryReason, error: RouterError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


class Sender:
    """Sends calls to engines."""

    def __init__(self, session: aiohttp.ClientSession, sign: SignPrefill | None) -> None:
        """`sign` is required where targets have a prefill engine."""
        self._session = session
        self._sign = sign

    async def send(self, target: Target, call: Call) -> Reply:
        """The engine's answer, once its first byte is there.

        Raises:
            AttemptFailedError: there is none.
        """
        engine = target.engine
        try:
            return await self._send(target, call)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _failure("connect", engine, "could not be reached", error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _failure("broken", engine, "broke off before it answered", error) from error

    async def _send(self, target: Target, call: Call) -> Reply:
        url = URL(target.engine.endpoint.url + call.path, encoded=True)  # as the client wrote it
        response = await self._session.request(
            call.method,
            url,
            data=_payload(call.body),
            headers=self._headers(target, call),
            allow_redirects=False,
        )
        try:
            await _raise_if_refused(response)
            first = await response.content.readany()
            if response.content_type == sse.CONTENT_TYPE:
                _raise_if_nothing_generated(target.engine, first)
        except BaseException:
            response.close()
            raise
        return Reply(target, response, first)

    def _headers(self, target: Target, call: Call) -> dict[str, str]:
        if target.prefill is None:
            return call.headers
        assert self._sign is not None, "a router of pairs has a key"
        signed = self._sign(target.prefill, call.headers[REQUEST_ID_HEADER])
        return call.headers | {PREFILL_HEADER: signed}


async def _raise_if_refused(response: aiohttp.ClientResponse) -> None:
    reason = RETRIED_STATUSES.get(response.status)
    if reason is None:
        return
    body = await read_at_most(response, _REFUSAL_BYTES)
    headers = response_headers(response.headers)
    headers.pop("Content-Length", None)
    reason = REASON_OF_CODE.get(_code_in(body), reason)
    raise AttemptFailedError(reason, EngineRefusedError(response.status, headers, body))


class _Error(msgspec.Struct):
    code: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error


def _code_in(body: bytes) -> str | None:
    """The error's code, if it has one."""
    try:
        return msgspec.json.decode(body, type=_Refusal).error.code
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _raise_if_nothing_generated(engine: EngineState, first: bytes) -> None:
    """A stream that begins with its end, or with an error event, can still be retried."""
    if not first:
        raise _failure("broken", engine, "ended the stream before its first token")
    if (error := sse.error_in(first)) is not None:
        headers = {"Content-Type": JSON_CONTENT_TYPE}
        refusal = EngineRefusedError(HTTPStatus.BAD_GATEWAY, headers, error)
        raise AttemptFailedError("broken", refusal)


def _failure(
    reason: RetryReason, engine: EngineState, what: str, cause: BaseException | None = None
) -> AttemptFailedError:
    """The message names the engine and what happened; the cause, with addresses, is logged."""
    error = EngineFailedError(f"engine {engine.endpoint.name} {what}")
    error.__cause__ = cause
    return AttemptFailedError(reason, error)


def _payload(body: Body | None) -> bytes | io.BytesIO | None:
    """The body for aiohttp, which sends a file in pieces and lets other requests run between."""
    if body is None:
        return None
    return body.content if len(body.content) <= SMALL_BYTES else io.BytesIO(body.content)
