"""`/v1/completions`, `/v1/chat/completions`, `/v1/models`: what OpenAI's clients ask for."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from sluice_runtime.server.answering import Answerer, Route
from sluice_runtime.server.answers import ChatShape, CompletionShape
from sluice_runtime.server.failures import ModelNotFoundError
from sluice_runtime.server.prompts import Planner
from sluice_runtime.server.protocol import ChatRequest, CompletionRequest
from sluice_runtime.server.service import Service

COMPLETIONS: Final = Route(CompletionRequest, Planner.plan_completion, CompletionShape(), "cmpl-")
CHAT: Final = Route(ChatRequest, Planner.plan_chat, ChatShape(), "chatcmpl-")


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
