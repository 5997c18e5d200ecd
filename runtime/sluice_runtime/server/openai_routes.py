"""`/v1/completions`, `/v1/chat/completions`, `/v1/models`.

The flow of a request is `Answerer.answer`, read from top to bottom: read, plan, generate, answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from fastapi import APIRouter, Request
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from sluice_runtime.errors import InvalidRequestError, OverloadedError, RequestError
from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.answers import (
    ChatShape,
    Chunks,
    CompletionShape,
    Envelope,
    Shape,
    Usage,
    whole,
)
from sluice_runtime.server.body import read_body
from sluice_runtime.server.failures import ModelNotFoundError
from sluice_runtime.server.parse import parse_request
from sluice_runtime.server.prompts import ChoicePlan, Planner
from sluice_runtime.server.protocol import ChatRequest, CompletionRequest, GenerationRequest
from sluice_runtime.server.routing_key import routing_key_of
from sluice_runtime.server.service import Service
from sluice_runtime.server.streaming import EventStream, unless_client_goes

RequestT = TypeVar("RequestT", bound=GenerationRequest)

_CLIENT_CLOSED_REQUEST: Final = 499
"""Nobody reads it; it shows in the access log of proxies."""


@dataclass(frozen=True)
class Route(Generic[RequestT]):
    """What tells the two completion routes apart."""

    kind: type[RequestT]
    plan: Callable[[Planner, RequestT], list[ChoicePlan]]
    shape: Shape
    id_prefix: str


COMPLETIONS: Final = Route(CompletionRequest, Planner.plan_completion, CompletionShape(), "cmpl-")
CHAT: Final = Route(ChatRequest, Planner.plan_chat, ChatShape(), "chatcmpl-")


class Answerer:
    """Answers the requests of both completion routes."""

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
        pieces = self._counted(generator.pieces(plans, arrival_seconds, routing_key))
        usage = Usage([len(plan.prompt_ids) for plan in plans[:: asked.choices]], asked.choices)
        envelope = self._envelope(route)
        if asked.stream:
            include = bool(asked.stream_options and asked.stream_options.include_usage)
            events = _events(Chunks(route.shape, envelope, usage, include), pieces)
            return await self._streamed(request, events)
        collected = await unless_client_goes(request.receive, _collected(pieces))
        if collected is None:
            return self._gone()
        return JSONResponse(whole(route.shape, envelope, usage, collected))

    def _plan(
        self, route: Route[RequestT], planner: Planner, body: bytes
    ) -> tuple[RequestT, list[ChoicePlan]]:
        """Runs in a thread: a long body is slow to parse and to tokenise."""
        asked = parse_request(route.kind, body)
        served = self._service.identity.model
        if asked.model != served:
            raise ModelNotFoundError(
                f"model: {asked.model!r} is not served here; allowed: {served!r}", "model"
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


def openai_router(service: Service) -> APIRouter:
    """The OpenAI routes."""
    router = APIRouter(prefix="/v1")
    answerer = Answerer(service)

    @router.post("/completions")
    async def completions(request: Request) -> Response:
        return await answerer.answer(COMPLETIONS, request)

    @router.post("/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await answerer.answer(CHAT, request)

    @router.get("/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [_model(service)]})

    @router.get("/models/{name:path}")
    async def model(name: str) -> Response:
        if name != service.identity.model:
            raise ModelNotFoundError(
                f"model: {name!r} is not served here; allowed: {service.identity.model!r}", "model"
            )
        return JSONResponse(_model(service))

    return router


def _model(service: Service) -> dict[str, Any]:
    engine = service.client.ready
    return {
        "id": service.identity.model,
        "object": "model",
        "created": service.identity.started_unix,
        "owned_by": "sluice",
        "max_model_len": engine.context_length_tokens if engine else None,
    }


async def _collected(pieces: AsyncGenerator[Piece, None]) -> Sequence[Piece]:
    async with aclosing(pieces):
        return [piece async for piece in pieces]


async def _events(
    chunks: Chunks, pieces: AsyncGenerator[Piece, None]
) -> AsyncGenerator[dict[str, Any], None]:
    async with aclosing(pieces):
        async for piece in pieces:
            if chunk := chunks.of(piece):
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
