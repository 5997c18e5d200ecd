"""Sends a request to one engine after another until one answers.

A request is retried only before the first byte of an answer. After a connection error, 502 or 503
(draining, not ready) the engine gets no requests for a moment; after 429 (queue full), or a 503 for
want of memory or of a grammar, it does. Every other answer is passed on. When two engines have
failed in a way that the request may have caused, no third is tried. Knows nothing of the client's
connection.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Literal

import aiohttp
import msgspec
from sluice_contract.engine_http import ENGINE_DIED, GRAMMAR_UNAVAILABLE, OUT_OF_MEMORY
from sluice_contract.router_config import Upstream
from yarl import URL

from sluice_router import sse
from sluice_router.edge import response_headers
from sluice_router.engines import EngineState
from sluice_router.errors import (
    JSON_CONTENT_TYPE,
    EngineFailedError,
    EngineRefusedError,
    NoEngineError,
    RouterError,
)
from sluice_router.fleet import Clock, Fleet
from sluice_router.memory import SMALL_BYTES, Body
from sluice_router.pick import Choice
from sluice_router.upstream import read_at_most

Choose = Callable[[Sequence[EngineState], float, Collection[str]], Choice]
"""The engine for a request, among these, at that time, with those already tried."""
RetryReason = Literal[
    "connect", "broken", "unavailable", "queue_full", "uncompiled", "out_of_memory"
]

RETRIED_STATUSES: Final[dict[int, RetryReason]] = {
    HTTPStatus.TOO_MANY_REQUESTS: "queue_full",
    HTTPStatus.BAD_GATEWAY: "broken",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
}
_REFUSAL_BYTES: Final = 65_536
"""Length to which a refusal is cut before it is passed on."""
REASON_OF_CODE: Final[dict[str | None, RetryReason]] = {
    ENGINE_DIED: "broken",
    GRAMMAR_UNAVAILABLE: "uncompiled",
    OUT_OF_MEMORY: "out_of_memory",
}
"""Where the code of a 503 says more than the status."""
ENGINE_NOT_AT_FAULT: Final[frozenset[RetryReason]] = frozenset(
    {"queue_full", "uncompiled", "out_of_memory"}
)
MAY_BE_THE_REQUEST: Final[frozenset[RetryReason]] = frozenset(
    {"broken", "uncompiled", "out_of_memory"}
)
"""Failures that the request may have caused."""
MAX_SUCH_FAILURES: Final = 2
"""After as many of them a request is not retried: it is unlikely that every engine is at fault."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as engines get it. `path` is still percent-encoded."""

    method: str
    path: str
    headers: dict[str, str]
    body: Body | None


class Reply:
    """An engine's answer from its first byte on."""

    def __init__(self, engine: EngineState, response: aiohttp.ClientResponse, first: bytes) -> None:
        self.engine = engine
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
            name = self.engine.endpoint.name
            raise EngineFailedError(f"engine {name} broke off") from error


class _AttemptFailedError(Exception):
    """One engine did not answer; another one might."""

    def __init__(self, reason: RetryReason, error: RouterError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


@dataclass
class _History:
    """The failed attempts of one call."""

    tried: set[str] = field(default_factory=set)
    """Keys of engines that are asked again only after all others."""
    failure: _AttemptFailedError | None = None
    caused: int = 0
    """Failures that the request may have caused."""

    def add(self, engine: EngineState, failure: _AttemptFailedError) -> None:
        """Record one more failed attempt.

        Raises:
            RouterError: the call is not retried.
        """
        self.tried.add(engine.key)
        self.failure = failure
        self.caused += failure.reason in MAY_BE_THE_REQUEST
        if self.caused >= MAX_SUCH_FAILURES:
            raise failure.error


class Dispatcher:
    """Finds an engine for a call."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        upstream: Upstream,
        choose: Choose,
        clock: Clock,
        on_retry: Callable[[RetryReason], None],
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._upstream = upstream
        self._choose = choose
        self._clock = clock
        self._on_retry = on_retry
        self.waiting = 0
        """Requests that wait for a usable engine."""

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncIterator[Reply]:
        """The answer of the first engine that gives one; its connection is closed on leaving.

        Raises:
            RouterError: none did; the error of the last one asked, or that there was none.
        """
        deadline = self._clock() + self._upstream.wait_for_engine_seconds
        history = _History()
        for _ in range(self._upstream.max_attempts):
            engine = await self._next_engine(history, deadline)
            if history.failure is not None:
                self._on_retry(history.failure.reason)
            with self._fleet.request(engine.key):
                try:
                    response, first = await self._ask(engine, call)
                except _AttemptFailedError as error:
                    if error.reason not in ENGINE_NOT_AT_FAULT:
                        self._fleet.failed(engine.key)
                    history.add(engine, error)
                    continue
                self._fleet.answered(engine.key)
                if call.body is not None:
                    call.body.release()
                try:
                    yield Reply(engine, response, first)
                except EngineFailedError:
                    self._fleet.failed(engine.key)
                    raise
                finally:
                    _close(response)
                return
        assert history.failure is not None
        raise history.failure.error

    async def _next_engine(self, history: _History, deadline: float) -> EngineState:
        tried, failure = history.tried, history.failure
        while True:
            now = self._clock()
            engines = self._fleet.engines()
            choice = self._choose(engines, now, tried)
            if choice.engine is not None:
                return choice.engine
            if failure is not None and (failure.reason in ENGINE_NOT_AT_FAULT or now >= deadline):
                raise failure.error
            if now >= deadline:
                raise NoEngineError(f"no engine can take the request: {choice.message}")
            tried.clear()
            self.waiting += 1
            try:
                await self._fleet.wait_for_change(deadline - now)
            finally:
                self.waiting -= 1

    async def _ask(self, engine: EngineState, call: Call) -> tuple[aiohttp.ClientResponse, bytes]:
        try:
            return await self._attempt(engine, call)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _failure("connect", engine, "could not be reached", error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _failure("broken", engine, "broke off before it answered", error) from error

    async def _attempt(
        self, engine: EngineState, call: Call
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        url = URL(engine.endpoint.url + call.path, encoded=True)  # as the client wrote it
        response = await self._session.request(
            call.method, url, data=_payload(call.body), headers=call.headers, allow_redirects=False
        )
        try:
            await _raise_if_refused(response)
            first = await response.content.readany()
            if response.content_type == sse.CONTENT_TYPE:
                _raise_if_nothing_generated(engine, first)
        except BaseException:
            response.close()
            raise
        return response, first


async def _raise_if_refused(response: aiohttp.ClientResponse) -> None:
    reason = RETRIED_STATUSES.get(response.status)
    if reason is None:
        return
    body = await read_at_most(response, _REFUSAL_BYTES)
    headers = response_headers(response.headers)
    headers.pop("Content-Length", None)
    reason = REASON_OF_CODE.get(_code_in(body), reason)
    raise _AttemptFailedError(reason, EngineRefusedError(response.status, headers, body))


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
        raise _AttemptFailedError("broken", refusal)


def _failure(
    reason: RetryReason, engine: EngineState, what: str, cause: BaseException | None = None
) -> _AttemptFailedError:
    """The message names the engine and what happened; the cause, with addresses, is logged."""
    error = EngineFailedError(f"engine {engine.endpoint.name} {what}")
    error.__cause__ = cause
    return _AttemptFailedError(reason, error)


def _payload(body: Body | None) -> bytes | io.BytesIO | None:
    """The body for aiohttp, which sends a file in pieces and lets other requests run between."""
    if body is None:
        return None
    return body.content if len(body.content) <= SMALL_BYTES else io.BytesIO(body.content)


def _close(response: aiohttp.ClientResponse) -> None:
    """Keep the connection if the answer was read to its end; else close it, so that the engine
    aborts the request."""
    if response.content.at_eof():
        response.release()
    else:
        response.close()
