"""The OpenAPI document: one table of operations, and schemas from the types of bodies and answers.

Pure. Tests hold the table to the routes, and the answers to the schemas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from sluice_contract.load import LoadReport

from sluice_runtime.server import response_models as answers
from sluice_runtime.server.metrics import CONTENT_TYPE
from sluice_runtime.server.not_implemented import MESSAGE_ROWS, ROWS, NeutralOnly
from sluice_runtime.server.protocol import (
    AbortRequest,
    ChatMessage,
    ChatRequest,
    CompletionRequest,
    GenerateRequest,
    GenerationRequest,
)

_REF: Final = "#/components/schemas/{model}"
_HEAD_ERRORS: Final = (408, 414, 431)
_BODY_ERRORS: Final = (400, 413, 415)
_WORK_ERRORS: Final = (*_BODY_ERRORS, 404, 429, 499, 500, 503)
_ERROR_WORDS: Final[Mapping[int, str]] = {
    400: "The request is at fault; `param` names the field.",
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
}


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    answer: type[BaseModel] | None
    """None: the content type says it all."""
    errors: tuple[int, ...] = ()
    body: type[BaseModel] | None = None
    event: type[BaseModel] | None = None
    """With `stream`: what each event holds, until `[DONE]`."""
    content_type: str = "application/json"


OPERATIONS: Final = (
    Operation(
        "post",
        "/v1/completions",
        "Complete a text",
        answers.Completion,
        _WORK_ERRORS,
        CompletionRequest,
        answers.Completion,
    ),
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a conversation",
        answers.ChatCompletion,
        _WORK_ERRORS,
        ChatRequest,
        answers.ChatCompletionChunk,
    ),
    Operation("get", "/v1/models", "The model that is served", answers.ModelList),
    Operation("get", "/v1/models/{name}", "One model", answers.ModelAnswer, (404,)),
    Operation(
        "post",
        "/generate",
        "Go on from a text or from token ids; the answer has token ids, too",
        answers.Generation,
        _WORK_ERRORS,
        GenerateRequest,
        answers.Generation,
    ),
    Operation(
        "post",
        "/abort_request",
        "Give a request up",
        answers.AbortAnswer,
        _BODY_ERRORS,
        AbortRequest,
    ),
    Operation("get", "/health", "Whether the process lives", answers.StatusAnswer, (503,)),
    Operation("get", "/ready", "Whether requests are served", answers.StatusAnswer, (503,)),
    Operation(
        "get",
        "/health_generate",
        "Draw one token",
        answers.StatusAnswer,
        (429, 500, 503),
    ),
    Operation("post", "/flush_cache", "Forget cached prefixes", answers.StatusAnswer, (503,)),
    Operation("get", "/load", "What runs and what waits", LoadReport, (503,)),
    Operation("get", "/metrics", "For Prometheus", None, content_type=CONTENT_TYPE),
    Operation("get", "/openapi.json", "This document", None),
)


@cache
def document() -> dict[str, Any]:
    """The document; the same for every server of this version."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Sluice engine",
            "version": "v1alpha1",
            "description": "OpenAI's completions and chat, and Sluice's own routes. Fields that "
            "are not listed are refused.",
        },
        "paths": paths,
        "components": {"schemas": _schemas(_models(OPERATIONS))},
    }


def _operation(operation: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {"200": _success(operation)}
    for status in sorted({*_HEAD_ERRORS, *operation.errors}):
        content = {"application/json": {"schema": _ref(answers.ErrorAnswer)}}
        responses[str(status)] = {"description": _ERROR_WORDS[status], "content": content}
    described: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if operation.body is not None:
        content = {"application/json": {"schema": _ref(operation.body)}}
        described["requestBody"] = {"required": True, "content": content}
    if "{name}" in operation.path:
        described["parameters"] = [
            {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    return described


def _success(operation: Operation) -> dict[str, Any]:
    schema = {} if operation.answer is None else {"schema": _ref(operation.answer)}
    content: dict[str, Any] = {operation.content_type: schema}
    description = "Success."
    if operation.event is not None:
        content["text/event-stream"] = {"schema": _event(operation.event)}
        description += (
            f" With `stream`, events `data: {operation.event.__name__}` and at last "
            "`data: [DONE]`; or, after an error, `data: ErrorAnswer` and no `[DONE]`."
        )
    return {"description": description, "content": content}


def _event(model: type[BaseModel]) -> dict[str, Any]:
    """One event: its data is JSON, but for the mark of the end."""
    content = {"anyOf": [_ref(model), _ref(answers.ErrorAnswer)]}
    json = {"type": "string", "contentMediaType": "application/json", "contentSchema": content}
    data = {"anyOf": [{"const": "[DONE]"}, json]}
    return {"type": "object", "required": ["data"], "properties": {"data": data}}


def _models(operations: Iterable[Operation]) -> list[type[BaseModel]]:
    used = [m for o in operations for m in (o.body, o.answer, o.event) if m is not None]
    return list(dict.fromkeys([*used, answers.ErrorAnswer]))


def _schemas(models: list[type[BaseModel]]) -> dict[str, Any]:
    described = models_json_schema([(m, "validation") for m in models], ref_template=_REF)
    schemas: dict[str, Any] = described[1]["$defs"]
    for model in models:
        if issubclass(model, GenerationRequest):
            _add_neutral_fields(schemas[model.__name__]["properties"], ROWS)
    _add_neutral_fields(schemas[ChatMessage.__name__]["properties"], MESSAGE_ROWS)
    return schemas


def _add_neutral_fields(properties: dict[str, Any], rows: Mapping[str, NeutralOnly]) -> None:
    """Fields that are taken only with a value that asks for nothing."""
    for name, row in rows.items():
        properties.setdefault(name, {"enum": list(row.neutral)})


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
