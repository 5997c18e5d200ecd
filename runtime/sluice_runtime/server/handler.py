"""Handles the requests of all routes that generate.

`RequestHandler.handle` reads a request, plans it, starts it on the engine, and responds with its
pieces, streamed or whole. The routes' paths are in `app`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import Request
from sluice_contract.http_heads import (
    CLIENT_REQUEST_ID_HEADER,
    IGNORED_FIELDS_HEADER,
    is_acceptable_request_id,
)
from sluice_contract.wire.private_calls import AnswerStart, CallHead, Resume
from sluice_contract.wire.spans import child_of, is_sampled, trace_id
from sluice_contract.wire.tenants import TenantClaims
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from sluice_runtime.errors import (
    AbortedError,
    HandedBackError,
    InvalidRequestError,
    OverloadedError,
    PrefillUnavailableError,
    RequestError,
    UnavailableError,
)
from sluice_runtime.server.answer_text import Piece
from sluice_runtime.server.body import (
    parse_request,
    read_body,
    refuse_heavy,
    routing_key_of,
    traceparent_of,
)
from sluice_runtime.server.choice_plans import ChoicePlan, RequestContext
from sluice_runtime.server.failures import error_body, log_unforeseen
from sluice_runtime.server.fields import MAX_IGNORED_FIELDS, AnsweredRequest
from sluice_runtime.server.generation import Caller, Generator, ResumableChoice
from sluice_runtime.server.prompts import ServedModel, unread_options
from sluice_runtime.server.request_span import GenerationFacts, Operation, RequestSpan
from sluice_runtime.server.response_writers import Chunk, Envelope, Usage, Writer, is_light
from sluice_runtime.server.resumption import (
    MAX_HEAD_BYTES,
    prompt_hash,
    resumable_choices,
    split_call,
    streamed_events,
    whole_event,
)
from sluice_runtime.server.service import Service, draw_seed
from sluice_runtime.server.signed_headers import (
    SignedHeaders,
    apply_tenant,
    read_signed_headers,
    refuse_body,
)
from sluice_runtime.server.streaming import (
    Event,
    EventStream,
    WholeAnswer,
    stream_end,
    until_client_leaves,
)

_log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=AnsweredRequest)
EventT = TypeVar("EventT", bound=Event)

_CLIENT_CLOSED_REQUEST: Final = 499
"""The client is gone; proxies log it."""

_NAME_BYTES: Final = 64
"""Limit of an ignored field's name, as it is shown."""
_PLACE_BYTES: Final = 192
"""Limit of a place in a tool's schema, behind the tool's name."""


@dataclass(frozen=True)
class Route(Generic[RequestT]):
    """A route that generates, as far as it differs from the others."""

    kind: type[RequestT]
    plan: Callable[[ServedModel, RequestContext, RequestT], list[ChoicePlan]]
    writer: Callable[[RequestT, Envelope, Usage], Writer]
    id_prefix: str
    operation: Operation = "chat"


class PlannedRequest(NamedTuple):
    """A request that was parsed and planned."""

    request: AnsweredRequest
    choices: list[ResumableChoice]
    envelope: Envelope
    ignored: list[str]
    """Names of unknown fields, quoted for a header and a log."""
    start: AnswerStart | None
    """Start of a private call's answer: what another engine would need to go on."""
    head: CallHead
    """First line of a private call; without a history for any other."""

    @property
    def running(self) -> int:
        """How many choices are to be generated."""
        return sum(not choice.ended for choice in self.choices)

    @property
    def usage(self) -> Usage:
        plans = [choice.reader.plan for choice in self.choices]
        count = self.request.choices
        return Usage([len(plan.prompt_ids) for plan in plans[::count]], count)

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        headers = ignored_header(self.ignored)
        if self.request.request_id and is_acceptable_request_id(self.request.request_id):
            headers[CLIENT_REQUEST_ID_HEADER] = self.request.request_id
        return headers

    def names(self, header_id: str) -> tuple[str, ...]:
        """Names by which the request may be aborted; `header_id`: its `x-request-id`."""
        own = self.request.request_id
        return (self.envelope.response_id, header_id, *(() if own is None else (own,)))


class RequestHandler:
    """Handles the requests of all routes that generate."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def handle(self, route: Route[Any], request: Request) -> Response:
        """The response to one request, streamed or whole."""
        arrival_seconds = self._service.clocks.monotonic()
        try:
            signed = read_signed_headers(request, self._service.role_check)
            routing_key = routing_key_of(request) or signed.tenant_salt
            model, generator = self._service.served_model(), self._service.generator()
            # Before any work for it; `open_all` checks again, with all of its choices.
            self._service.client.check_capacity(1, signed.tenant_salt)
            body = await read_body(request, self._max_body_bytes(signed))
            planned = await asyncio.to_thread(self._plan, route, model, generator, body, signed)
        except ClientDisconnect:
            return _client_gone()
        except RequestError:
            self._service.metrics.ended("refused")
            raise
        self._service.log_ignored(planned.ignored)
        trace, span = self._traced(route, request, planned, arrival_seconds)
        caller = Caller(
            arrival_seconds,
            planned.head,
            signed.tenant_salt,
            routing_key,
            planned.names(request.state.request_id),
            router_id=request.state.request_id,
            prefill=signed.prefill,
            traceparent=trace,
        )
        pieces = generator.pieces(planned.choices, caller)
        counted = self._counted(pieces, planned.running, caller, span)
        writer = route.writer(planned.request, planned.envelope, planned.usage)
        try:
            response = await self._respond(writer, request, planned, counted)
        except (UnavailableError, PrefillUnavailableError):
            # Raises where it is the adapter that is not there any more.
            self._service.adapter_key(planned.request.requested_model)
            raise
        response.headers.update(planned.headers)
        return response

    async def count_tokens(self, route: Route[Any], request: Request) -> Response:
        """How many tokens the prompt of a request has."""
        model = self._service.served_model()
        try:
            body = await read_body(request, self._service.identity.max_body_bytes)
        except ClientDisconnect:
            return _client_gone()
        self._service.signatures.check_sender(request, body)
        tokens, ignored = await asyncio.to_thread(self._count, route, model, body)
        self._service.log_ignored(ignored)
        response = WholeAnswer(msgspec.json.encode({"input_tokens": tokens}))
        response.headers.update(ignored_header(ignored))
        return response

    def _count(self, route: Route[Any], model: ServedModel, body: bytes) -> tuple[int, list[str]]:
        parsed, ignored = self._parsed(route, model, body, None)
        adapter = self._service.adapter_key(parsed.requested_model)
        context = RequestContext(draw_seed(), self._service.clocks.unix(), adapter)
        plans = route.plan(model, context, parsed)
        ignored = _with_changes(ignored, plans)
        return sum(len(plan.prompt_ids) for plan in plans), ignored

    def _max_body_bytes(self, signed: SignedHeaders) -> int:
        head_bytes = MAX_HEAD_BYTES if signed.private else 0
        return self._service.identity.max_body_bytes + head_bytes

    def _plan(
        self,
        route: Route[Any],
        model: ServedModel,
        generator: Generator,
        body: bytes,
        signed: SignedHeaders,
    ) -> PlannedRequest:
        """Runs in a thread: a long body is slow to hash, to parse and to tokenise."""
        refuse_body(signed.digests, body)
        head = CallHead(0)
        if signed.private:
            head, body = split_call(body, self._service.identity.max_body_bytes)
        envelope = self._envelope(route, head.resume)
        parsed, ignored = self._parsed(route, model, body, signed.tenant)
        adapter = self._service.adapter_key(parsed.requested_model)
        seed = head.seed if signed.private else draw_seed()
        plans = route.plan(model, RequestContext(seed, envelope.created_unix, adapter), parsed)
        ignored = _with_changes(ignored, plans)
        read = partial(generator.reader, response_id=envelope.response_id)
        start = None
        if signed.private:
            start = self._start(envelope, plans, parsed.choices, adapter)
            choices = resumable_choices(plans, start, head.resume, model.vocabulary_size, read)
        else:
            choices = [ResumableChoice(read(plan)) for plan in plans]
        return PlannedRequest(
            parsed, choices, envelope.named(parsed.requested_model), ignored, start, head
        )

    def _parsed(
        self,
        route: Route[RequestT],
        model: ServedModel,
        body: bytes,
        tenant: TenantClaims | None,
    ) -> tuple[RequestT, list[str]]:
        """The request and its unknown fields."""
        strict = self._service.identity.strict_requests
        refuse_heavy(route.kind, body, model.limits.request_tokens)
        request, ignored = parse_request(route.kind, body, strict=strict)
        ignored += _skipped(request, strict=strict)
        ignored += unread_options(model.text, request, strict=strict)
        return request if tenant is None else apply_tenant(request, tenant), _quoted(ignored)

    def _start(
        self, envelope: Envelope, plans: Sequence[ChoicePlan], choices: int, adapter: str
    ) -> AnswerStart:
        """Start of the answer, by which another engine could continue it; `choices`: for each
        prompt."""
        prompts = [plan.prompt_ids for plan in plans[::choices]]
        return AnswerStart(
            envelope.response_id,
            envelope.created_unix,
            prompt_hash(prompts, adapter),
            [plan.max_tokens for plan in plans],
            sum(map(len, prompts)),
            self._service.answer_identity(),
        )

    def _envelope(self, route: Route[Any], resume: Resume | None) -> Envelope:
        """Envelope of a new response, or of the one that is continued."""
        model = self._service.identity.model
        if resume is not None:
            return Envelope(resume.start.id, resume.start.created, model)
        created = int(self._service.clocks.unix())
        return Envelope(route.id_prefix + secrets.token_hex(12), created, model)

    async def _respond(
        self,
        writer: Writer,
        request: Request,
        planned: PlannedRequest,
        pieces: AsyncGenerator[Piece, None],
    ) -> Response:
        streams, encode = planned.request.stream, partial(_encoded_response, writer)
        if planned.start is not None:
            if streams:
                events = streamed_events(writer, planned.choices, pieces, planned.start)
            else:
                events = whole_event(encode, planned.choices, pieces, planned.start)
            return await _event_stream(request, events, private=True)
        if streams:
            return await _event_stream(request, _events(writer, pieces))
        collected = await until_client_leaves(request.receive, _collected(pieces))
        if collected is None:
            return _client_gone()
        if is_light(collected):
            return WholeAnswer(encode(collected))
        return WholeAnswer(await asyncio.to_thread(encode, collected))

    def _traced(
        self, route: Route[Any], request: Request, planned: PlannedRequest, arrival_seconds: float
    ) -> tuple[str, RequestSpan | None]:
        """The trace that the engine process sees, and the span of this request, if recorded."""
        service, trace = self._service, traceparent_of(request)
        if service.record is None or not is_sampled(trace):
            return trace, None
        facts = GenerationFacts(
            route.operation,
            planned.request,
            planned.envelope,
            planned.choices[0].reader.plan,
            planned.usage,
            request.scope.get("server"),
        )
        ids, clock = (child_of(trace), trace), service.clocks.monotonic
        span = RequestSpan(service.record, ids, arrival_seconds, clock, service.role, facts)
        return ids[0], span

    async def _counted(
        self,
        pieces: AsyncGenerator[Piece, None],
        choices: int,
        caller: Caller,
        span: RequestSpan | None,
    ) -> AsyncGenerator[Piece, None]:
        """Passes pieces on and counts how the request ended: by the reason of its last choice, or
        as an abort if not all choices finished."""
        outcome, running = "abort" if choices else "stop", choices
        failure: Exception | None = None
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if span is not None:
                        span.piece_arrived(piece)
                    yield piece
                    if piece.finish_reason is not None:
                        running -= 1
                        outcome = outcome if running else piece.finish_reason
        except (OverloadedError, InvalidRequestError) as error:
            outcome, failure = "refused", error
            raise
        except HandedBackError as error:
            outcome, failure = "handed_back", error
            raise
        except AbortedError:
            raise
        except Exception as error:
            outcome, failure = "error", error
            _log_failure(caller, error)
            raise
        finally:
            self._service.metrics.ended(outcome)
            if span is not None:
                span.end(outcome, failure)


def _log_failure(caller: Caller, error: Exception) -> None:
    names = [name for name in caller.names if is_acceptable_request_id(name)]
    if trace := trace_id(caller.traceparent):
        names.append(f"trace={trace}")
    _log.warning("request %s failed: %s", " ".join(names), error)


def _skipped(request: AnsweredRequest, *, strict: bool) -> list[str]:
    skipped: list[str] = getattr(request, "skipped", [])  # of routes that have such tools
    if strict and skipped:
        field = skipped[0].partition("[")[0]
        raise InvalidRequestError(f"{skipped[0]}: is not served here (strictRequests)", field)
    return skipped[:MAX_IGNORED_FIELDS]


def _with_changes(ignored: Sequence[str], plans: Sequence[ChoicePlan]) -> list[str]:
    """`ignored`, what was done to the conversation for the template, and parts of schemas that no
    grammar enforces. Beyond the most `ignored` comes last, and its end is a number."""
    places = [quote(place, safe="[]/:$ ")[:_PLACE_BYTES] for place in plans[0].left_out]
    if len(places) > MAX_IGNORED_FIELDS // 2:  # each tool is named, if not each place
        places = [place.partition(":")[0] for place in places]
    changes = [*_quoted(plans[0].template_changes), *places]
    names = list(dict.fromkeys([*ignored, *changes]))
    if (more := len(names) - MAX_IGNORED_FIELDS + 1) <= 1:
        return names
    return [*list(dict.fromkeys([*changes, *ignored]))[:-more], f"{more} more"]


def _quoted(names: Sequence[str]) -> list[str]:
    """Names of fields, for a header and a log."""
    return [quote(name[:_NAME_BYTES], safe="[]/")[:_NAME_BYTES] for name in names]


def ignored_header(ignored: Sequence[str]) -> dict[str, str]:
    return {IGNORED_FIELDS_HEADER: ", ".join(ignored)} if ignored else {}


def _client_gone() -> Response:
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _collected(pieces: AsyncGenerator[Piece, None]) -> Sequence[Piece]:
    async with aclosing(pieces):
        return [piece async for piece in pieces]


def _encoded_response(writer: Writer, collected: Sequence[Piece]) -> bytes:
    return msgspec.json.encode(writer.whole_response(collected))


async def _event_stream(
    request: Request, events: AsyncGenerator[EventT, None], *, private: bool = False
) -> Response:
    """Waits for the first event, so that an early failure has its own status code."""
    first = await until_client_leaves(request.receive, anext(events))
    if first is None:
        await events.aclose()
        return _client_gone()
    end = stream_end(request.scope["path"], private=private)
    return EventStream(_with_first(first, events), end=end)


async def _events(
    writer: Writer, pieces: AsyncGenerator[Piece, None]
) -> AsyncGenerator[Chunk, None]:
    """The events of a response; a stream that has begun ends with the writer's own error events,
    where it has some."""
    begun = False
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                light = is_light([piece])
                chunk = (
                    writer.chunk(piece) if light else await asyncio.to_thread(writer.chunk, piece)
                )
                if chunk:
                    begun = True
                    yield chunk
    except Exception as error:
        failure = writer.failure_chunk(error_body(error)["error"]["message"]) if begun else None
        if failure is None:
            raise
        log_unforeseen(error)
        yield failure
        return
    if final := writer.final_chunk():
        yield final


async def _with_first(
    first: EventT, rest: AsyncGenerator[EventT, None]
) -> AsyncGenerator[EventT, None]:
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event
