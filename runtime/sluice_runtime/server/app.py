"""The ASGI application: every route, its error format, and the gate around them.

The routes that generate only name their `Route`; `handler` does the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from fastapi import APIRouter, FastAPI, Request
from sluice_contract.config.cors import METHODS, PREFLIGHT_SECONDS, READABLE_HEADERS
from sluice_contract.http_errors import COUNT_TOKENS_PATH, MESSAGES_PATH
from sluice_contract.log_lines import shown_json
from sluice_contract.wire.load import ROUTER_HEADER, LoadReport
from sluice_contract.wire.private_calls import HAND_BACK_PATH, ROLE_PATH
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from sluice_runtime.errors import InvalidRequestError, UnavailableError
from sluice_runtime.server import response_models
from sluice_runtime.server.answer_text import Detokenizer
from sluice_runtime.server.body import parse_body, parse_request, read_body, refuse_heavy
from sluice_runtime.server.choice_plans import plan_chat, plan_completion
from sluice_runtime.server.engine_client import LOADING_SECONDS
from sluice_runtime.server.failures import install_error_handlers
from sluice_runtime.server.generate_request import GenerateRequest, plan_generate
from sluice_runtime.server.handler import RequestHandler, Route, ignored_header
from sluice_runtime.server.health import TokenCheck
from sluice_runtime.server.http import GateMiddleware
from sluice_runtime.server.messages.events import MessageWriter
from sluice_runtime.server.messages.models import MessageAnswer, MessageEvent, TokenCount
from sluice_runtime.server.messages.request import CountTokensRequest, MessagesRequest
from sluice_runtime.server.messages.translation import plan_message
from sluice_runtime.server.metrics import CONTENT_TYPE
from sluice_runtime.server.openapi import (
    ANTHROPIC_ERRORS,
    BODY_ERRORS,
    HEAD_ERRORS,
    SENDER_ERRORS,
    WORK_ERRORS,
    body,
    document,
    errors,
    events,
    named_events,
    signed_call,
)
from sluice_runtime.server.pages import for_people
from sluice_runtime.server.prompts import ServedModel, token_ids
from sluice_runtime.server.protocol import (
    MAX_PROMPT_TOKENS,
    AbortRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from sluice_runtime.server.response_writers import (
    ChatShape,
    CompletionShape,
    GenerateShape,
    chunk_writer,
)
from sluice_runtime.server.responses.events import ResponseWriter
from sluice_runtime.server.responses.models import ResponseAnswer, ResponseEvent
from sluice_runtime.server.responses.request import ResponsesRequest
from sluice_runtime.server.responses.translation import plan_response
from sluice_runtime.server.router_calls import (
    HandBackHandler,
    HandBackRequest,
    RoleChanger,
    RoleRequest,
)
from sluice_runtime.server.sampling_plan import refuse_unknown_tokens
from sluice_runtime.server.service import Service
from sluice_runtime.server.streaming import WholeAnswer

COMPLETIONS: Final = Route(
    CompletionRequest,
    plan_completion,
    chunk_writer(CompletionShape()),
    "cmpl-",
    "text_completion",
)
CHAT: Final = Route(ChatRequest, plan_chat, chunk_writer(ChatShape()), "chatcmpl-")
RESPONSES: Final = Route(ResponsesRequest, plan_response, ResponseWriter, "resp_")
MESSAGES: Final = Route(MessagesRequest, plan_message, MessageWriter, "msg_")
COUNT_TOKENS: Final = Route(CountTokensRequest, plan_message, MessageWriter, "msg_")
GENERATE: Final = Route(
    GenerateRequest,
    plan_generate,
    chunk_writer(GenerateShape()),
    "gen-",
    "text_completion",
)

_NAME: Final = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_LOADING: Final = {
    "name": "loading_seconds",
    "in": "query",
    "schema": {"type": "number", "exclusiveMinimum": 0, "maximum": 86_400},
}


def make_app(service: Service, *, with_metrics: bool = True) -> ASGIApp:
    """The whole application; the gate is outside, so that every response has its request id.
    `with_metrics`: whether /metrics is served here, since no other port does."""
    app = GateMiddleware(routes_of(service, with_metrics=with_metrics), service.gate)
    cors = service.identity.cors
    if cors is None:
        return app
    return CORSMiddleware(
        app,
        allow_origins=cors.allowed_origins,
        allow_methods=METHODS,
        allow_headers=["*"],
        expose_headers=READABLE_HEADERS,
        max_age=PREFLIGHT_SECONDS,
    )


def make_metrics_app(service: Service) -> ASGIApp:
    """Application with the monitoring routes, for a separate port; none of them changes
    anything."""
    app = _app_of(_status(service), _metrics(service), document_path=None)
    return GateMiddleware(app, service.gate)


def routes_of(service: Service, *, with_metrics: bool = True) -> FastAPI:
    """All routes, with their error format."""
    metrics = [_metrics(service)] if with_metrics else []
    return _app_of(
        _generating(service),
        _tokens(service),
        _anthropic(service),
        _models(service),
        _engine(service),
        _status(service),
        for_people(),
        *metrics,
    )


def _app_of(*routers: APIRouter, document_path: str | None = "/openapi.json") -> FastAPI:
    app = FastAPI(
        openapi_url=document_path,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=HEAD_ERRORS,
    )
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    install_error_handlers(app)
    for router in routers:
        app.include_router(router)
    return app


def _generating(service: Service) -> APIRouter:
    router = APIRouter(responses=WORK_ERRORS)
    handler = RequestHandler(service)

    @router.post(
        "/v1/completions",
        response_model=response_models.Completion,
        responses=events(response_models.Completion),
        openapi_extra=body(CompletionRequest),
    )
    async def complete_a_text(request: Request) -> Response:
        return await handler.handle(COMPLETIONS, request)

    @router.post(
        "/v1/chat/completions",
        response_model=response_models.ChatCompletion,
        responses=events(response_models.ChatCompletionChunk),
        openapi_extra=body(ChatRequest),
    )
    async def answer_a_conversation(request: Request) -> Response:
        return await handler.handle(CHAT, request)

    @router.post(
        "/v1/responses",
        response_model=ResponseAnswer,
        responses=events(ResponseEvent),
        openapi_extra=body(ResponsesRequest),
    )
    async def respond(request: Request) -> Response:
        """Answers input items without storing anything."""
        return await handler.handle(RESPONSES, request)

    @router.post(
        "/generate",
        response_model=response_models.Generation,
        responses=events(response_models.Generation),
        openapi_extra=body(GenerateRequest),
    )
    async def generate(request: Request) -> Response:
        """Continues a text or token ids; the answer has token ids, too."""
        return await handler.handle(GENERATE, request)

    return router


def _tokens(service: Service) -> APIRouter:
    """Texts and token ids of the model's tokenizer; the engine computes nothing for them."""
    router = APIRouter(responses=BODY_ERRORS | errors(403, 404, 503))

    @router.post(
        "/tokenize",
        response_model=response_models.TokenizeAnswer,
        openapi_extra=body(TokenizeRequest),
    )
    async def tokenize(request: Request) -> Response:
        """The token ids of a prompt, or of a conversation with its chat template."""
        model, content = service.served_model(), await _senders_body(service, request)
        answer, changes = await asyncio.to_thread(_tokenized, service, model, content)
        response = WholeAnswer(answer)
        response.headers.update(ignored_header(changes))
        return response

    @router.post(
        "/detokenize",
        response_model=response_models.DetokenizeAnswer,
        openapi_extra=body(DetokenizeRequest),
    )
    async def detokenize(request: Request) -> Response:
        """The text of token ids."""
        model, content = service.served_model(), await _senders_body(service, request)
        return WholeAnswer(await asyncio.to_thread(_detokenized, service, model, content))

    return router


async def _senders_body(service: Service, request: Request) -> bytes:
    """Reads a call's body and checks its sender. Raises like `read_body` and `check_sender`."""
    content = await read_body(request, service.identity.max_body_bytes)
    service.signatures.check_sender(request, content)
    return content


def _anthropic(service: Service) -> APIRouter:
    router = APIRouter(responses=ANTHROPIC_ERRORS)
    handler = RequestHandler(service)

    @router.post(
        MESSAGES_PATH,
        response_model=MessageAnswer,
        responses=named_events(MessageEvent, "message_stop"),
        openapi_extra=body(MessagesRequest),
    )
    async def answer_a_message(request: Request) -> Response:
        """Anthropic's Messages."""
        return await handler.handle(MESSAGES, request)

    @router.post(
        COUNT_TOKENS_PATH, response_model=TokenCount, openapi_extra=body(CountTokensRequest)
    )
    async def count_tokens(request: Request) -> Response:
        """How many tokens the prompt of a message has."""
        return await handler.count_tokens(COUNT_TOKENS, request)

    return router


def _tokenized(service: Service, model: ServedModel, content: bytes) -> tuple[bytes, Sequence[str]]:
    """The answer, and the changes that the chat template made to the conversation."""
    refuse_heavy(ChatRequest, content, model.limits.request_tokens)
    tokens_request = parse_body(TokenizeRequest, content)
    if (tokens_request.prompt is None) == (tokens_request.messages is None):
        raise InvalidRequestError("prompt: allowed: either prompt or messages", "prompt")
    service.adapter_key(tokens_request.model)
    kind: type[CompletionRequest | ChatRequest] = (
        CompletionRequest if tokens_request.messages is None else ChatRequest
    )
    request = parse_request(kind, content, strict=False).request
    ids, changes = token_ids(model, request, service.clocks.unix())
    strings = None
    if tokens_request.return_token_strs:
        strings = [model.text.tokenizer.token_name(token) for token in ids]
    longest = model.limits.context_length_tokens
    answer = {"count": len(ids), "max_model_len": longest, "tokens": ids, "token_strs": strings}
    return msgspec.json.encode(answer), changes


def _detokenized(service: Service, model: ServedModel, content: bytes) -> bytes:
    refuse_heavy(DetokenizeRequest, content, MAX_PROMPT_TOKENS)
    tokens_request = parse_body(DetokenizeRequest, content)
    service.adapter_key(tokens_request.model)
    refuse_unknown_tokens("tokens", tokens_request.tokens, model.vocabulary_size)
    detokenizer = Detokenizer(model.text.tokenizer, model.text.special_texts)
    text = detokenizer.push(tokens_request.tokens) + detokenizer.finish()
    return msgspec.json.encode({"prompt": text})


def _models(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get("/v1/models", response_model=response_models.ModelList)
    async def models() -> Response:
        names = (*service.identity.names, *service.adapters)
        return JSONResponse({"object": "list", "data": [_model(service, name) for name in names]})

    @router.get(
        "/v1/models/{name:path}",
        response_model=response_models.ModelAnswer,
        responses=errors(404),
        openapi_extra={"parameters": [_NAME]},
    )
    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        service.adapter_key(name)
        return JSONResponse(_model(service, name))

    return router


def _engine(service: Service) -> APIRouter:
    """Sluice's own routes that talk to the engine."""
    router = APIRouter()
    check_token = TokenCheck(service.client, service.clocks.monotonic)
    changer, hand_backs = RoleChanger(service), HandBackHandler(service)

    @router.post(
        "/abort_request",
        response_model=response_models.AbortAnswer,
        responses=BODY_ERRORS,
        openapi_extra=body(AbortRequest),
    )
    async def abort_request(request: Request) -> Response:
        """Ends a request by its x-request-id, its `request_id`, or the id of its response."""
        abort = await asyncio.to_thread(_abort_request, await _senders_body(service, request))
        return JSONResponse({"aborted": service.client.abort(abort.request_id)})

    @router.get(
        "/health_generate",
        response_model=response_models.StatusAnswer,
        responses=errors(500, 503),
    )
    async def health_generate() -> Response:
        """The engine draws a token now, for this request or for any other."""
        if service.gate.closed:
            raise UnavailableError("the server drains")
        await check_token()
        return JSONResponse({"status": "ok"})

    @router.post(
        "/flush_cache", response_model=response_models.StatusAnswer, responses=SENDER_ERRORS
    )
    async def flush_cache(request: Request) -> Response:
        """Forgets cached prefixes: later requests reuse nothing that was computed before."""
        service.signatures.check_sender(request, b"")
        service.client.flush_cache()
        return JSONResponse({"status": "ok"})

    @router.post(ROLE_PATH, **signed_call(RoleRequest, response_models.RoleAnswer))
    async def role(request: Request) -> Response:
        """A prefill engine becomes a decode engine, or the other way round. Signed by the router
        of the service; answers once it is."""
        role, seconds = await changer.handle(request)
        return JSONResponse({"role": role, "seconds": round(seconds, 3)})

    @router.post(HAND_BACK_PATH, **signed_call(HandBackRequest, response_models.HandBackAnswer))
    async def hand_back(request: Request) -> Response:
        """Gives requests that have not begun back to the service's router, which signs the call."""
        return JSONResponse({"requests": await hand_backs.handle(request)})

    return router


def _status(service: Service) -> APIRouter:
    """Routes for kubelet, router, autoscaler and people; none of them talks to the engine."""
    router = APIRouter()

    @router.get(
        "/health",
        response_model=response_models.StatusAnswer,
        responses=errors(400, 503),
        openapi_extra={"parameters": [_LOADING]},
    )
    async def health(request: Request) -> Response:
        """Liveness: this process answers, and the engine neither died nor hangs. While it loads its
        model it may make no progress for `loading_seconds`."""
        if not service.client.healthy(_loading_seconds(request)):
            failure = service.client.failure
            raise UnavailableError(failure.message if failure else "the engine process is silent")
        return JSONResponse({"status": "ok"})

    @router.get("/ready", response_model=response_models.StatusAnswer, responses=errors(503))
    async def ready() -> Response:
        """Readiness: the model is loaded and the server does not drain."""
        if not service.ready:
            state = "draining" if service.gate.closed else _loading(service)
            raise UnavailableError(f"not ready: {state}")
        return JSONResponse({"status": "ready"})

    @router.get("/load", response_model=LoadReport, responses=errors(503))
    async def load(request: Request) -> Response:
        """Running and queued requests, free pages."""
        router = request.headers.get(ROUTER_HEADER)
        return JSONResponse(service.load_report(router).to_json_dict())

    return router


def _metrics(service: Service) -> APIRouter:
    router = APIRouter()

    @router.get(
        "/metrics", response_class=Response, responses={200: {"content": {CONTENT_TYPE: {}}}}
    )
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    return router


def _abort_request(content: bytes) -> AbortRequest:
    refuse_heavy(AbortRequest, content, prompt_tokens=0)
    return parse_body(AbortRequest, content)


def _loading_seconds(request: Request) -> float:
    if (value := request.query_params.get("loading_seconds")) is None:
        return LOADING_SECONDS
    with suppress(ValueError):
        if 0 < (seconds := float(value)) <= 86_400:
            return seconds
    raise InvalidRequestError(
        f"loading_seconds: {shown_json(value)} is not allowed; allowed: above 0, at most 86400",
        "loading_seconds",
    )


def _loading(service: Service) -> str:
    if (read := service.client.loading) is None:
        return "the model is not loaded"
    gigabytes = f"{read.read_bytes / 1e9:.1f} of {read.total_bytes / 1e9:.1f} GB read"
    return f"the model is not loaded: {gigabytes}"


def _model(service: Service, name: str) -> dict[str, Any]:
    """OpenAI's object for the model, or an adapter, with this name."""
    engine, identity = service.client.ready, service.identity
    return {
        "id": name,
        "object": "model",
        "created": service.identity.started_unix,
        "owned_by": "sluice",
        "max_model_len": engine.context_length_tokens if engine else None,
        "root": identity.model,
        "permission": [],
        "parent": None if name in identity.names else identity.model,
    }
