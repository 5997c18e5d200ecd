"""How every route that generates answers: `Answerer.answer` reads the request, plans it, starts it
on the engine and answers.

Knows no path.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import Request
from sluice_contract.engine_http import (
    CLIENT_REQUEST_ID_HEADER,
    IGNORED_FIELDS_HEADER,
    is_acceptable_request_id,
)
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from sluice_runtime.errors import (
    AbortedError,
    InvalidRequestError,
    OverloadedError,
    RequestError,
)
from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.answers import Chunks, Envelope, Shape, Usage, whole
from sluice_runtime.server.body import read_body, refuse_heavy, routing_key_of
from sluice_runtime.server.failures import ModelNotFoundError
from sluice_runtime.server.generation import Caller
from sluice_runtime.server.parse import parse_request
from sluice_runtime.server.prompts import ChoicePlan, Planner
from sluice_runtime.server.protocol import GenerationRequest
from sluice_runtime.server.service import Service
from sluice_runtime.server.streaming import EventStream, WholeAnswer, until_client_leaves

_log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=GenerationRequest)

_CLIENT_CLOSED_REQUEST: Final = 499
"""The client is gone; proxies log it."""

_NAME_BYTES: Final = 64
"""Of an ignored field's name, as it is shown."""
_LIGHT_PARTS: Final = 64
"""Pieces and scored tokens that are encoded on the event loop; a scored token may take 30 µs."""


@dataclass(frozen=True)
class Route(Generic[RequestT]):
    """What differs between the routes that generate."""

    kind: type[RequestT]
    plan: Callable[[Planner, RequestT], list[ChoicePlan]]
    shape: Shape
    id_prefix: str


class Planned(NamedTuple):
    """A request that was parsed and planned."""

    asked: GenerationRequest
    plans: list[ChoicePlan]
    ignored: list[str]
    """Names of unknown fields, quoted for a header and a log."""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        headers = {IGNORED_FIELDS_HEADER: ", ".join(self.ignored)} if self.ignored else {}
        if self.asked.request_id and is_acceptable_request_id(self.asked.request_id):
            headers[CLIENT_REQUEST_ID_HEADER] = self.asked.request_id
        return headers


class Answerer:
    """Answers the requests of all routes that generate."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, route: Route[Any], request: Request) -> Response:
        """The response to one request, streamed or whole."""
        arrival_seconds = self._service.clocks.monotonic()
        try:
            prefill = self._service.role_check.prefill_of(request)
            routing_key = routing_key_of(request)
            body = await read_body(request, self._service.identity.max_body_bytes)
            planner = self._service.planner()
            planned = await asyncio.to_thread(self._plan, route, planner, body)
        except ClientDisconnect:
            return self._gone()
        except RequestError:
            self._service.metrics.ended("refused")
            raise
        self._service.log_ignored(planned.ignored)
        envelope = self._envelope(route)
        names = (envelope.response_id, request.state.request_id, planned.asked.request_id)
        given = tuple(name for name in names if name is not None)
        caller = Caller(arrival_seconds, routing_key, given, prefill)
        response = await self._respond(route.shape, request, planned, envelope, caller)
        response.headers.update(planned.headers)
        return response

    def _plan(self, route: Route[RequestT], planner: Planner, body: bytes) -> Planned:
        """Runs in a thread: a long body is slow to parse and to tokenise."""
        identity = self._service.identity
        refuse_heavy(route.kind, body, planner.limits.request_tokens)
        asked, ignored = parse_request(route.kind, body, strict=identity.strict_requests)
        if asked.requested_model not in (None, identity.model):
            raise ModelNotFoundError(
                f"model: {asked.requested_model!r} is not served here; allowed: {identity.model!r}",
                "model",
            )
        unread = planner.unread_options(asked, strict=identity.strict_requests)
        named = [quote(path[:_NAME_BYTES], safe="[]/")[:_NAME_BYTES] for path in ignored + unread]
        return Planned(asked, route.plan(planner, asked), named)

    async def _respond(
        self, shape: Shape, request: Request, planned: Planned, envelope: Envelope, caller: Caller
    ) -> Response:
        asked, plans, _ = planned
        drawn = self._service.generator().pieces(plans, caller)
        pieces = self._counted(drawn, len(plans), caller)
        usage = Usage([len(plan.prompt_ids) for plan in plans[:: asked.choices]], asked.choices)
        if asked.stream:
            events = _events(Chunks(shape, envelope, usage, asked.stream_options), pieces)
            return await self._streamed(request, events)
        collected = await until_client_leaves(request.receive, _collected(pieces))
        if collected is None:
            return self._gone()
        if _is_light(collected):
            return WholeAnswer(_written(shape, envelope, usage, collected))
        body = await asyncio.to_thread(_written, shape, envelope, usage, collected)
        return WholeAnswer(body)

    async def _streamed(
        self, request: Request, events: AsyncGenerator[dict[str, Any], None]
    ) -> Response:
        """Waits for the first event, so that an early failure has its own status code."""
        first = await until_client_leaves(request.receive, anext(events))
        if first is None:
            await events.aclose()
            return self._gone()
        return EventStream(_with_first(first, events))

    async def _counted(
        self, pieces: AsyncGenerator[Piece, None], choices: int, caller: Caller
    ) -> AsyncGenerator[Piece, None]:
        """Passes pieces on and counts how the request ended: by the reason of its last choice, or
        as an abort if not all choices finished."""
        outcome, running = "abort", choices
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
                    if piece.finish_reason is not None:
                        running -= 1
                        outcome = outcome if running else piece.finish_reason
        except (OverloadedError, InvalidRequestError):
            outcome = "refused"
            raise
        except AbortedError:
            raise
        except Exception as error:
            outcome = "error"
            named = " ".join(name for name in caller.names if is_acceptable_request_id(name))
            _log.warning("request %s failed: %s", named, error)
            raise
        finally:
            self._service.metrics.ended(outcome)

    def _envelope(self, route: Route[Any]) -> Envelope:
        created = int(self._service.clocks.unix())
        response_id = route.id_prefix + secrets.token_hex(12)
        return Envelope(response_id, created, self._service.identity.model)

    def _gone(self) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _collected(pieces: AsyncGenerator[Piece, None]) -> Sequence[Piece]:
    async with aclosing(pieces):
        return [piece async for piece in pieces]


def _written(shape: Shape, envelope: Envelope, usage: Usage, collected: Sequence[Piece]) -> bytes:
    return msgspec.json.encode(whole(shape, envelope, usage, collected))


def _is_light(pieces: Sequence[Piece]) -> bool:
    """Whether encoding these is fast enough for the event loop."""
    scored = sum(len(piece.scores or ()) + len(piece.prompt_scores or ()) for piece in pieces)
    return len(pieces) + scored <= _LIGHT_PARTS


async def _events(
    chunks: Chunks, pieces: AsyncGenerator[Piece, None]
) -> AsyncGenerator[dict[str, Any], None]:
    async with aclosing(pieces):
        async for piece in pieces:
            light = _is_light([piece])
            if chunk := chunks.of(piece) if light else await asyncio.to_thread(chunks.of, piece):
                yield chunk
    if last := chunks.last():
        yield last


async def _with_first(
    first: dict[str, Any], rest: AsyncGenerator[dict[str, Any], None]
) -> AsyncGenerator[dict[str, Any], None]:
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event
