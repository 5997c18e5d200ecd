"""How a request for tokens is answered, whatever its route; read `Answerer.answer` from top to
bottom: read, plan, generate, answer.

Knows no path.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec
from fastapi import Request
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
from sluice_runtime.server.body import read_body
from sluice_runtime.server.failures import ModelNotFoundError
from sluice_runtime.server.generation import Caller
from sluice_runtime.server.parse import parse_request
from sluice_runtime.server.prompts import ChoicePlan, Planner
from sluice_runtime.server.protocol import GenerationRequest
from sluice_runtime.server.routing_key import routing_key_of
from sluice_runtime.server.service import Service
from sluice_runtime.server.streaming import EventStream, WholeAnswer, unless_client_goes
from sluice_runtime.server.weight import refuse_heavy

RequestT = TypeVar("RequestT", bound=GenerationRequest)

_CLIENT_CLOSED_REQUEST: Final = 499
"""Nobody reads it; it shows in the access log of proxies."""

_LIGHT_PARTS: Final = 64
"""Pieces and scored tokens; each of the latter may take 30 µs."""


@dataclass(frozen=True)
class Route(Generic[RequestT]):
    """What tells the routes that generate apart."""

    kind: type[RequestT]
    plan: Callable[[Planner, RequestT], list[ChoicePlan]]
    shape: Shape
    id_prefix: str


class Answerer:
    """Answers the requests of all routes that generate."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, route: Route[Any], request: Request) -> Response:
        """The response to one request, streamed or whole."""
        arrival_seconds = self._service.clocks.monotonic()
        try:
            routing_key = routing_key_of(request)
            body = await read_body(request, self._service.identity.max_body_bytes)
            planner = self._service.planner()
            asked, plans = await asyncio.to_thread(self._plan, route, planner, body)
        except ClientDisconnect:
            return self._gone()
        except RequestError:
            self._service.metrics.ended("refused")
            raise
        generator = self._service.generator()
        envelope = self._envelope(route)
        names = (envelope.response_id, request.state.request_id)
        caller = Caller(arrival_seconds, routing_key, names)
        pieces = self._counted(generator.pieces(plans, caller))
        usage = Usage([len(plan.prompt_ids) for plan in plans[:: asked.choices]], asked.choices)
        if asked.stream:
            include = bool(asked.stream_options and asked.stream_options.include_usage)
            events = _events(Chunks(route.shape, envelope, usage, include), pieces)
            return await self._streamed(request, events)
        collected = await unless_client_goes(request.receive, _collected(pieces))
        if collected is None:
            return self._gone()
        if _is_light(collected):
            return WholeAnswer(_written(route.shape, envelope, usage, collected))
        body = await asyncio.to_thread(_written, route.shape, envelope, usage, collected)
        return WholeAnswer(body)

    def _plan(
        self, route: Route[RequestT], planner: Planner, body: bytes
    ) -> tuple[RequestT, list[ChoicePlan]]:
        """Runs in a thread: a long body is slow to parse and to tokenise."""
        refuse_heavy(route.kind, body, planner.limits.request_tokens)
        asked = parse_request(route.kind, body)
        served = self._service.identity.model
        if asked.asked_model not in (None, served):
            raise ModelNotFoundError(
                f"model: {asked.asked_model!r} is not served here; allowed: {served!r}", "model"
            )
        return asked, route.plan(planner, asked)

    async def _streamed(
        self, request: Request, events: AsyncGenerator[dict[str, Any], None]
    ) -> Response:
        """Waits for the first event, so that an early failure has a status of its own."""
        first = await unless_client_goes(request.receive, anext(events))
        if first is None:
            await events.aclose()
            return self._gone()
        return EventStream(_with_first(first, events))

    async def _counted(self, pieces: AsyncGenerator[Piece, None]) -> AsyncGenerator[Piece, None]:
        """Passes pieces on and counts how the request ended."""
        outcome = "abort"
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
                    outcome = piece.finish_reason or outcome
        except (OverloadedError, InvalidRequestError):
            outcome = "refused"
            raise
        except AbortedError:
            raise
        except Exception:
            outcome = "error"
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
    """Whether an answer of these is written in no time, so that no thread need be asked to."""
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
