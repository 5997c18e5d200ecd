"""One attempt: sends a request to one engine, and says why it was not answered if it was not.

`Sender` sends clients' requests, `EngineCalls` the router's own.

A failed attempt is not retried or counted here. Streams have no time limit of their own, so the
kernel detects an engine that vanished: by keep-alive probes while nothing is in flight, by a limit
on unacknowledged data otherwise. Connections to the API server are opened in the same way.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, Final

import aiohttp
from sluice_contract.http_errors import TENANT_FULL
from sluice_contract.http_heads import REQUEST_ID_HEADER
from sluice_contract.wire.handover import PREFILL_HEADER, Bound, Keys
from sluice_contract.wire.private_calls import PRIVATE_HEADER, signed_call
from sluice_contract.wire.spans import TRACEPARENT_HEADER
from sluice_contract.wire.tenants import TENANT_HEADER
from yarl import URL

from sluice_router import sse
from sluice_router.auth import SignTenant
from sluice_router.byte_budget import SMALL_BYTES, Body
from sluice_router.edge import response_headers
from sluice_router.engines import EngineState
from sluice_router.errors import (
    JSON_CONTENT_TYPE,
    PRIVATE_REASONS,
    REASON_OF_CODE,
    RESUMED_CODES,
    RETRIED_STATUSES,
    AttemptFailedError,
    EngineFailedError,
    EngineRefusedError,
    OtherKeyError,
    RetryReason,
    RouterError,
    error_in,
)
from sluice_router.pick import Affinity
from sluice_router.resume import PrivateCallSigner, Progress, SignedBody, body_sha256
from sluice_router.targets import SignPrefill, Target
from sluice_router.telemetry import Attempt, RouterSpans

_REFUSAL_BYTES: Final = 65_536
"""Length to which a refusal is cut before it is passed on."""
_OWN_ANSWER_BYTES: Final = 4096
_OWN_CONNECT_SECONDS: Final = 2.0
KEEPALIVE_IDLE_SECONDS: Final = 10
KEEPALIVE_INTERVAL_SECONDS: Final = 5
KEEPALIVE_PROBES: Final = 3
UNACKNOWLEDGED_MILLISECONDS: Final = 25_000
IDLE_SECONDS: Final = 4.0
"""Well below `http_heads.IDLE_CONNECTION_SECONDS`, after which engines close a connection: no
request must be sent on one that is just being closed."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as engines get it. `path` is still percent-encoded."""

    method: str
    path: str
    headers: dict[str, str]
    body: Body | None
    progress: Progress | None = None
    """Progress of the answer, if the request may be sent as a private call."""
    affinity: Affinity | None = None
    """Affinity of its prompt or its session."""
    tenant: str | None = None
    """The tenant that sends it, if API keys are required."""
    model: str | None = None
    """The model or adapter that it names."""
    generates: bool = True
    """Whether its body has a prompt to be computed."""
    limit: asyncio.Timeout | None = None
    """The limit that ends it when it takes too long."""


class Reply:
    """An engine's answer from its first byte on."""

    def __init__(
        self, target: Target, response: aiohttp.ClientResponse, first: bytes, *, private: bool
    ) -> None:
        """`private`: whether it answers a private call."""
        self.target = target
        self.status = response.status
        self.headers = response_headers(response.headers)
        self.streams_events = response.content_type == sse.CONTENT_TYPE
        self.private = private and self.streams_events and self.status == HTTPStatus.OK
        """Whether its events have comments for the router."""
        self.first = first
        self.attempt: Attempt | None = None
        """Span of the attempt, if it is recorded."""
        self._response = response

    @property
    def engine(self) -> str:
        """Name of the engine, for people."""
        return f"engine {self.target.engine.endpoint.name}"

    async def read(self) -> bytes:
        """The bytes that came since; empty at the end.

        Raises:
            EngineFailedError: the engine broke off.
        """
        try:
            return await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            raise EngineFailedError(f"{self.engine} broke off") from error

    def close(self) -> None:
        """Keep the connection if the answer was read to its end; else close it, so that the engine
        aborts the request."""
        whole = self._response.content.at_eof()
        if whole:
            self._response.release()
        else:
            self._response.close()
        if self.attempt is not None:
            cut = None if whole else "not read to its end"
            self.attempt.end(self.status, cut, None if whole else "not_read")


class Sender:
    """Sends calls to engines."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        sign: SignPrefill | None,
        call_signer: PrivateCallSigner | None,
        sign_tenant: SignTenant | None = None,
        spans: RouterSpans | None = None,
    ) -> None:
        """`sign` is required where targets have a prefill engine, `call_signer` where calls have
        progress. Without `sign_tenant` engines know no tenant."""
        self._session = session
        self._sign = sign
        self._call_signer = call_signer
        self._sign_tenant = sign_tenant
        self._spans = spans

    async def send(self, target: Target, call: Call) -> Reply:
        """The engine's answer, once its first byte is there.

        Raises:
            AttemptFailedError: there is none.
            EngineRefusedError: there is none, and no other engine is to be asked.
        """
        trace = call.headers.get(TRACEPARENT_HEADER, "")
        attempt = None
        if self._spans is not None:
            attempt = self._spans.attempt(trace, target.name, target.engine.endpoint.url)
        if attempt is not None:
            call = replace(call, headers=call.headers | {TRACEPARENT_HEADER: attempt.traceparent})
        try:
            reply = await self._send_or_fail(target, call)
        except BaseException as error:
            if attempt is not None:
                attempt.end(None, str(error) or type(error).__name__, _error_type(error))
            raise
        reply.attempt = attempt
        return reply

    async def _send_or_fail(self, target: Target, call: Call) -> Reply:
        engine = target.engine
        try:
            return await self._send(target, call)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _failure("connect", engine, "could not be reached", error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _failure("broken", engine, "broke off before it answered", error) from error

    async def _send(self, target: Target, call: Call) -> Reply:
        url = URL(target.engine.endpoint.url + call.path, encoded=True)  # as the client wrote it
        signed = await self._signed(target, call)
        headers = self._headers(target, call, signed, await self._bound(target, call, signed))
        response = await self._session.request(
            call.method,
            url,
            data=_payload(call.body, signed),
            headers=headers,
            allow_redirects=False,
        )
        private = signed is not None
        try:
            resumes = private and call.progress is not None and call.progress.begun
            trusts = self._call_signer is not None
            trusts = trusts or PREFILL_HEADER in headers or TENANT_HEADER in headers
            await _raise_if_refused(
                response, target, private=private, resumes=resumes, trusts=trusts
            )
            first = await response.content.readany()
            if response.content_type == sse.CONTENT_TYPE:
                _raise_if_nothing_generated(target.engine, first)
        except BaseException:
            response.close()
            raise
        return Reply(target, response, first, private=private)

    async def _signed(self, target: Target, call: Call) -> SignedBody | None:
        """The private call; None if the engine gets the request as the client sent it."""
        if call.progress is None or call.body is None or not target.engine.takes_private_calls:
            return None
        assert self._call_signer is not None, "calls have progress where there is a key"
        id_ = call.headers[REQUEST_ID_HEADER]
        return await self._call_signer.sign(call.progress.head(), call.body.content, id_, call.path)

    async def _bound(self, target: Target, call: Call, signed: SignedBody | None) -> Bound | None:
        """The path and body that signed headers are good for; None: no header is signed."""
        signs = target.prefill is not None or (self._sign_tenant and call.tenant is not None)
        if not signs:
            return None
        if signed is not None:
            return signed.bound
        content = b"" if call.body is None else call.body.content
        return Bound(call.path, await body_sha256(content))

    def _headers(
        self, target: Target, call: Call, signed: SignedBody | None, bound: Bound | None
    ) -> dict[str, str]:
        headers = dict(call.headers)
        if signed is not None:
            headers |= {PRIVATE_HEADER: signed.signature, "Content-Length": str(signed.size)}
        if target.prefill is not None:
            assert self._sign is not None, "a router of pairs has a key"
            assert bound is not None
            headers[PREFILL_HEADER] = self._sign(target.prefill, headers[REQUEST_ID_HEADER], bound)
        if self._sign_tenant is not None and call.tenant is not None:
            assert bound is not None
            id_ = headers[REQUEST_ID_HEADER]
            headers[TENANT_HEADER] = self._sign_tenant(call.tenant, id_, bound)
        return headers


@dataclass(frozen=True)
class EngineCalls:
    """Signs and posts the router's own calls, each with a request id of its own."""

    session: aiohttp.ClientSession
    keys: Keys
    unix_clock: Callable[[], float]
    draw_id: Callable[[], str]

    async def post(
        self, engine: EngineState, path: str, body: bytes, answer_seconds: float
    ) -> tuple[int, str]:
        """Status and text of the answer.

        Raises:
            aiohttp.ClientError, OSError: there is none, or it took longer.
            ValueError: there is no key.
        """
        limit = aiohttp.ClientTimeout(total=answer_seconds, sock_connect=_OWN_CONNECT_SECONDS)
        url = engine.endpoint.url + path
        request_id = self.draw_id()
        bound = Bound(path, hashlib.sha256(body).hexdigest())
        signed = signed_call(self.keys()[0], request_id, bound, self.unix_clock())
        headers = {REQUEST_ID_HEADER: request_id, PRIVATE_HEADER: signed}
        async with self.session.post(url, data=body, headers=headers, timeout=limit) as answer:
            text = (await read_at_most(answer, _OWN_ANSWER_BYTES)).decode(errors="replace")
        return answer.status, text


def _error_type(error: BaseException) -> str:
    """Error type of an attempt without an answer, for its span: a reason or a code, else the
    class."""
    if isinstance(error, AttemptFailedError):
        return error.reason
    return error.code if isinstance(error, RouterError) else type(error).__qualname__


async def _raise_if_refused(
    response: aiohttp.ClientResponse,
    target: Target,
    *,
    private: bool,
    resumes: bool,
    trusts: bool,
) -> None:
    """Raise AttemptFailedError if another engine might serve it; `trusts`: whether no engine serves
    the request without the router's signature.

    A queue that is full for one tenant is the answer, unless an answer is to be resumed: each other
    engine would be asked out of the retries of all tenants.

    Raises:
        EngineRefusedError: no other engine is to be asked.
    """
    reason = RETRIED_STATUSES.get(response.status)
    if resumes and reason is None and response.status != HTTPStatus.OK:
        reason = "mismatch"  # the engine that began the answer took the request
    if reason == "signature" and trusts and not private:
        raise AttemptFailedError("other_key", OtherKeyError(target.engine.endpoint.name))
    if reason is None or (reason in PRIVATE_REASONS and not private):
        return
    body = await read_at_most(response, _REFUSAL_BYTES)
    headers = response_headers(response.headers)
    headers.pop("Content-Length", None)
    error = EngineRefusedError(response.status, headers, body)
    code = error_in(body).code
    if code == TENANT_FULL and reason == "queue_full" and not resumes:
        raise error
    if resumes and reason in PRIVATE_REASONS:
        what = f"does not go on with the answer: {response.status} {code}"
        raise _failure(reason, target.engine, what)
    raise AttemptFailedError(REASON_OF_CODE.get(code, reason), error)


def _raise_if_nothing_generated(engine: EngineState, first: bytes) -> None:
    """A stream that begins with its end, or with an error event, can still be retried."""
    if not first:
        raise _failure("broken", engine, "ended the stream before its first token")
    if (error := sse.error_in(first)) is not None:
        headers = {"Content-Type": JSON_CONTENT_TYPE}
        refusal = EngineRefusedError(HTTPStatus.BAD_GATEWAY, headers, error)
        raise AttemptFailedError(RESUMED_CODES.get(error_in(error).code, "broken"), refusal)


def _failure(
    reason: RetryReason, engine: EngineState, what: str, cause: BaseException | None = None
) -> AttemptFailedError:
    """The message names the engine and what happened; the cause, with addresses, is logged."""
    error = EngineFailedError(f"engine {engine.endpoint.name} {what}")
    error.__cause__ = cause
    return AttemptFailedError(reason, error)


def _payload(
    body: Body | None, signed: SignedBody | None
) -> bytes | io.BytesIO | AsyncIterator[bytes] | None:
    """The body for aiohttp, which sends a file in pieces and lets other requests run between."""
    if body is None:
        return None
    if signed is not None:
        small = signed.size <= SMALL_BYTES
        return signed.head + signed.client_body if small else signed.pieces()
    return body.content if len(body.content) <= SMALL_BYTES else io.BytesIO(body.content)


def open_session(connect_timeout_seconds: float) -> aiohttp.ClientSession:
    """A pool of connections without a limit on their number or on how long an answer takes."""
    connector = aiohttp.TCPConnector(
        limit=0, keepalive_timeout=IDLE_SECONDS, socket_factory=_open_socket
    )
    return aiohttp.ClientSession(
        connector=connector,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_seconds),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent",),
    )


async def read_at_most(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    """The body, or its first `limit_bytes`."""
    body = bytearray()
    while len(body) < limit_bytes and (chunk := await response.content.readany()):
        body += chunk
    return bytes(body[:limit_bytes])


def _open_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol = address[:3]
    opened = socket.socket(family, kind, protocol)
    opened.setblocking(False)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = {
        "TCP_KEEPIDLE": KEEPALIVE_IDLE_SECONDS,
        "TCP_KEEPINTVL": KEEPALIVE_INTERVAL_SECONDS,
        "TCP_KEEPCNT": KEEPALIVE_PROBES,
        "TCP_USER_TIMEOUT": UNACKNOWLEDGED_MILLISECONDS,
    }
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:  # each system has some of them
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened
