"""What Sluice does beyond OpenAI's routes; `answering` has what `/generate` shares with them."""

from __future__ import annotations

import asyncio
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from sluice_runtime.errors import UnavailableError
from sluice_runtime.server.answering import Answerer, Route
from sluice_runtime.server.answers import GenerateShape
from sluice_runtime.server.body import read_body
from sluice_runtime.server.health import draw_token
from sluice_runtime.server.parse import parse_body
from sluice_runtime.server.prompts import Planner
from sluice_runtime.server.protocol import AbortRequest, GenerateRequest
from sluice_runtime.server.service import Service
from sluice_runtime.server.weight import refuse_heavy

GENERATE: Final = Route(GenerateRequest, Planner.plan_generate, GenerateShape(), "gen-")


def native_router(service: Service) -> APIRouter:
    """`/generate`, `/abort_request`, `/health_generate`, `/flush_cache`."""
    router = APIRouter()
    answerer = Answerer(service)

    @router.post("/generate")
    async def generate(request: Request) -> Response:
        return await answerer.answer(GENERATE, request)

    @router.post("/abort_request")
    async def abort_request(request: Request) -> Response:
        """Ends a request by its x-request-id, or by the id of its response."""
        body = await read_body(request, service.identity.max_body_bytes)
        asked = await asyncio.to_thread(_abort_request, body)
        return JSONResponse({"aborted": service.client.abort(asked.request_id)})

    @router.get("/health_generate")
    async def health_generate() -> Response:
        """The engine draws a token now, beside whatever it runs."""
        if service.gate.closed:
            raise UnavailableError("the server drains")
        await draw_token(service.client, service.clocks.monotonic())
        return JSONResponse({"status": "ok"})

    @router.post("/flush_cache")
    async def flush_cache() -> Response:
        """Requests that come from now on reuse nothing that was computed before."""
        service.client.flush_cache()
        return JSONResponse({"status": "ok"})

    return router


def _abort_request(body: bytes) -> AbortRequest:
    refuse_heavy(AbortRequest, body, prompt_tokens=0)
    return parse_body(AbortRequest, body)
