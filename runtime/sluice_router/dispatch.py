"""Offering a request to engines until one answers: pick, ask, and ask another when that may help.

A request is retried only before the first byte of an answer. Connection errors, 502 and 503
(draining, not ready) count against the engine for a moment; 429 (queue full) and a grammar that was
not compiled do not; every other answer is the client's. A request that two engines had when they
broke, or whose grammar two could not compile, is offered to no third: it may be what they broke of.
Knows nothing of the client's connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Literal

import aiohttp
import msgspec
from sluice_contract.engine_http import ENGINE_DIED, GRAMMAR_UNAVAILABLE
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
from sluice_router.pick import pick
from sluice_router.upstream import read_at_most

RetryReason = Literal["connect", "broken", "unavailable", "queue_full", "uncompiled"]

RETRIED_STATUSES: Final[dict[int, RetryReason]] = {
    HTTPStatus.TOO_MANY_REQUESTS: "queue_full",
    HTTPStatus.BAD_GATEWAY: "broken",
    HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
}
_REFUSAL_BYTES: Final = 65_536
"""Most of a refusal that is kept to be passed on."""
REASON_OF_CODE: Final[dict[str | None, RetryReason]] = {
    ENGINE_DIED: "broken",
    GRAMMAR_UNAVAILABLE: "uncompiled",
}
"""Where the code of a 503 says more than the status."""
ENGINE_IS_WELL: Final[frozenset[RetryReason]] = frozenset({"queue_full", "uncompiled"})
SUSPICIOUS: Final[frozenset[RetryReason]] = frozenset({"broken", "uncompiled"})
"""What the request may be the reason of."""
MOST_SUSPECTED: Final = 2
"""Engines that may fail so with one request: the second shows that it was not the engine."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request as an engine gets it; it can be sent again. `path` is still percent-encoded."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None


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
    """One engine did not answer; another might."""

    def __init__(self, reason: RetryReason, error: RouterError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error


@dataclass
class _History:
    """What became of one call so far."""

    tried: set[str] = field(default_factory=set)
    """Engines not to be asked again before the others."""
    failure: _AttemptFailedError | None = None
    suspected: int = 0
    """Engines that may have failed by the call."""

    def add(self, engine: EngineState, failure: _AttemptFailedError) -> None:
        """One more attempt that failed.

        Raises:
            RouterError: it was the last that this call may make.
        """
        self.tried.add(engine.key)
        self.failure = failure
        self.suspected += failure.reason in SUSPICIOUS
        if self.suspected >= MOST_SUSPECTED:
            raise failure.error


class Dispatcher:
    """Finds an engine for a call."""

    def __init__(
        self,
        fleet: Fleet,
        session: aiohttp.ClientSession,
        upstream: Upstream,
        stale_seconds: float,
        clock: Clock,
        on_retry: Callable[[RetryReason], None],
    ) -> None:
        self._fleet = fleet
        self._session = session
        self._upstream = upstream
        self._stale_seconds = stale_seconds
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
                    if error.reason not in ENGINE_IS_WELL:
                        self._fleet.failed(engine.key)
                    history.add(engine, error)
                    continue
                self._fleet.answered(engine.key)
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
            choice = pick(engines, now, stale_seconds=self._stale_seconds, tried=tried)
            if choice.engine is not None:
                return choice.engine
            if failure is not None and (failure.reason in ENGINE_IS_WELL or now >= deadline):
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
            call.method, url, data=call.body, headers=call.headers, allow_redirects=False
        )
        try:
            await _raise_if_refused(response)
            first = await response.content.readany()
            if response.content_type == sse.CONTENT_TYPE:
                _raise_if_stillborn(engine, first)
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


def _raise_if_stillborn(engine: EngineState, first: bytes) -> None:
    """A stream that begins with its end, or with an error, has nothing in it for the client."""
    if not first:
        raise _failure("broken", engine, "ended the stream before its first token")
    if (error := sse.error_in(first)) is not None:
        headers = {"Content-Type": JSON_CONTENT_TYPE}
        refusal = EngineRefusedError(HTTPStatus.BAD_GATEWAY, headers, error)
        raise _AttemptFailedError("broken", refusal)


def _failure(
    reason: RetryReason, engine: EngineState, what: str, cause: BaseException | None = None
) -> _AttemptFailedError:
    """The client is told which engine and what; the cause, with addresses, is for the log."""
    error = EngineFailedError(f"engine {engine.endpoint.name} {what}")
    error.__cause__ = cause
    return _AttemptFailedError(reason, error)


def _close(response: aiohttp.ClientResponse) -> None:
    """Keep the connection when the answer was read to its end; else close it: the engine aborts."""
    if response.content.at_eof():
        response.release()
    else:
        response.close()
