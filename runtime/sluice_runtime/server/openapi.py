"""Helpers for the routes' decorators, and the OpenAPI document that FastAPI makes from these.

FastAPI knows neither bodies that it does not parse, nor events; their types are added here.
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from sluice_contract.http_errors import OVERLOADED

from sluice_runtime.server.generate_request import GenerateRequest
from sluice_runtime.server.messages.models import AnthropicErrorAnswer, MessageEvent
from sluice_runtime.server.messages.request import CountTokensRequest, MessagesRequest
from sluice_runtime.server.protocol import (
    AbortRequest,
    ChatRequest,
    CompletionRequest,
)
from sluice_runtime.server.response_models import ChatCompletionChunk, ErrorAnswer
from sluice_runtime.server.responses.models import ResponseEvent
from sluice_runtime.server.responses.request import ResponsesRequest

Responses = dict[int | str, dict[str, Any]]

_REF: Final = "#/components/schemas/{model}"
_UNKNOWN_TO_FASTAPI: Final[tuple[type[BaseModel], ...]] = (
    AbortRequest,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    ChatCompletionChunk,
    ResponsesRequest,
    ResponseEvent,
    MessagesRequest,
    CountTokensRequest,
    MessageEvent,
)
_ERRORS: Final[dict[int, str]] = {
    400: "The request is at fault; `param` names the field.",
    403: "X-Sluice-Prefill or X-Sluice-Tenant is not signed by the service's router.",
    404: "No such model.",
    408: "Head or body did not arrive in time.",
    413: "The body is too large.",
    414: "The target is too long.",
    415: "The body is compressed.",
    429: "The queue is full; `Retry-After` says when to come again.",
    431: "A header is too long, or there are too many.",
    499: "The request was aborted.",
    500: "The engine could not go on with this request.",
    503: "Not ready, draining, or the engine has gone; `Retry-After` says when to come again.",
    OVERLOADED: "The same on Anthropic's routes.",
}


def errors(*statuses: int, model: type[BaseModel] = ErrorAnswer) -> Responses:
    """Responses with these status codes."""
    return {status: {"description": _ERRORS[status], "model": model} for status in statuses}


HEAD_ERRORS: Final = errors(408, 414, 431)
BODY_ERRORS: Final = errors(400, 413, 415)
SENDER_ERRORS: Final = errors(403, 503)
WORK_ERRORS: Final = BODY_ERRORS | errors(403, 404, 429, 499, 500, 503)
ANTHROPIC_ERRORS: Final = errors(
    400, 403, 404, 408, 413, 414, 415, 429, 431, 499, 500, OVERLOADED, model=AnthropicErrorAnswer
)


def body(model: type[BaseModel]) -> dict[str, Any]:
    """Description of the request body of a route that parses the body itself."""
    content = {"application/json": {"schema": _ref(model)}}
    return {"requestBody": {"required": True, "content": content}}


def signed_call(model: type[BaseModel], answer: type[BaseModel]) -> dict[str, Any]:
    """Description of a route for calls that the service's router signs."""
    responses = BODY_ERRORS | SENDER_ERRORS
    return {"response_model": answer, "responses": responses, "openapi_extra": body(model)}


def events(model: type[BaseModel]) -> Responses:
    """The 200 response of a route that can stream: each event holds a JSON object, the last one
    `[DONE]`."""
    description = (
        f"Success. With `stream`, events `data: {model.__name__}` and at last `data: [DONE]`; or, "
        "after an error, `data: ErrorAnswer` and no `[DONE]`."
    )
    data = {"anyOf": [{"const": "[DONE]"}, _data_of(model, ErrorAnswer)]}
    return _streamed(description, {"data": data})


def named_events(model: type[BaseModel], last: str) -> Responses:
    """The 200 response of a route whose events are named after their object's type. `last`: name of
    the last event."""
    description = (
        f"Success. With `stream`, events `data: {model.__name__}`, at last `event: {last}`; or, "
        "after an error, `event: error` with `data: AnthropicErrorAnswer`."
    )
    data = _data_of(model, AnthropicErrorAnswer)
    return _streamed(description, {"event": {"type": "string"}, "data": data})


def _data_of(*models: type[BaseModel]) -> dict[str, Any]:
    value = {"anyOf": [_ref(model) for model in models]}
    return {"type": "string", "contentMediaType": "application/json", "contentSchema": value}


def _streamed(description: str, properties: dict[str, Any]) -> Responses:
    event = {"type": "object", "required": [*properties], "properties": properties}
    return {200: {"description": description, "content": {"text/event-stream": {"schema": event}}}}


def document(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, including the schemas that FastAPI does not know."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(
            title="Sluice engine",
            version="v1alpha1",
            description="OpenAI's completions, chat and responses, Anthropic's messages, and "
            "Sluice's own routes. Fields that are not listed are ignored, and named in "
            "X-Sluice-Ignored-Fields.",
            routes=app.routes,
            separate_input_output_schemas=False,
        )
        modes = [(model, "validation") for model in _UNKNOWN_TO_FASTAPI]
        schemas = models_json_schema(modes, ref_template=_REF)[1]["$defs"]  # type: ignore[arg-type]
        app.openapi_schema["components"]["schemas"].update(schemas)
    return app.openapi_schema


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
