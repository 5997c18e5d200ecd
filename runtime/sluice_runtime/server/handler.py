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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import Request
from sluice_contract.http_errors import (
    CLIENT_REQUEST_ID_HEADER,
    IGNORED_FIELDS_HEADER,
    is_acceptable_request_id,
)
from sluice_contract.wire.handover import PREFILL_HEADER
from sluice_contract.wire.private_calls import PRIVATE_HEADER, AnswerStart, Resume, verified_call
from sluice_contract.wire.spans import trace_id
from sluice_contract.wire.tenants import TENANT_HEADER, TenantClaims, verified_tenant
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from sluice_runtime.errors import (
    AbortedError,
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
from sluice_runtime.server.failures import error_body, log_unforeseen
from sluice_runtime.server.fields import AnsweredRequest
from sluice_runtime.server.generation import BegunChoice, Caller, Generator
from sluice_runtime.server.prompts import ChoicePlan, Planner
from sluice_runtime.server.request_span import RequestSpan, request_span
from sluice_runtime.server.response_writers import Envelope, NamedEvents, Usage, Writer, is_light
from sluice_runtime.server.resumption import (
    MAX_HEAD_BYTES,
    begun_choices,
    opened_call,
    prompt_hash,
    streamed,
    whole_at_end,
)
from sluice_runtime.server.service import Service
from sluice_runtime.server.signed_headers import of_tenant, refuse_body
from sluice_runtime.server.streaming import Event, EventStream, WholeAnswer, until_client_leaves
from sluice_runtime.wire.messages import PrefillEngine

_log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=AnsweredRequest)
EventT = TypeVar("EventT", bound=Event)

_CLIENT_CLOSED_REQUEST: Final = 499
"""The client is gone; proxies log it."""

_NAME_BYTES: Final = 64
"""Of an ignored field's name, as it is shown."""


@dataclass(frozen=True)
class Route(Generic[RequestT]):
    """What differs between the routes that generate."""

    kind: type[RequestT]
    plan: Callable[[Planner, RequestT], list[ChoicePlan]]
    writer: Callable[[RequestT, Envelope, Usage], Writer]
    id_prefix: str


class Signed(NamedTuple):
    """What the service's router has signed for one request."""

    prefill: PrefillEngine | None
    """The engine that computes its prompt."""
    private: bool
    """Whether it is a private call."""
    tenant: TenantClaims | None
    digests: dict[str, str]
    """What its body must have: SHA-256, by the header that says so."""


class Planned(NamedTuple):
    """A request that was parsed and planned."""

    asked: AnsweredRequest
    choices: list[BegunChoice]
    envelope: Envelope
    ignored: list[str]
    """Names of unknown fields, quoted for a header and a log."""
    start: AnswerStart | None
    """Of a private call: what another engine would need to go on."""

    @property
    def running(self) -> int:
        """How many choices are to be generated."""
        return sum(not choice.ended for choice in self.choices)

    @property
    def usage(self) -> Usage:
        plans = [choice.reader.plan for choice in self.choices]
        count = self.asked.choices
        return Usage([len(plan.prompt_ids) for plan in plans[::count]], count)

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
            signed = self._signed(request)
            tenant = "" if signed.tenant is None else signed.tenant.salt
            routing_key = routing_key_of(request) or tenant
            head_bytes = MAX_HEAD_BYTES if signed.private else 0
            max_bytes = self._service.identity.max_body_bytes + head_bytes
            planner, generator = self._service.planner(), self._service.generator()
            # Before any work for it; `open_all` looks again, with all of its choices.
            self._service.client.check_room(1, tenant)
            body = await read_body(request, max_bytes)
            planned = await asyncio.to_thread(self._plan, route, planner, generator, body, signed)
        except ClientDisconnect:
            return self._gone()
        except RequestError:
            self._service.metrics.ended("refused")
            raise
        self._service.log_ignored(planned.ignored)
        response_id = planned.envelope.response_id
        names = (response_id, request.state.request_id, planned.asked.request_id)
        given = tuple(name for name in names if name is not None)
        trace = traceparent_of(request)
        span = self._span(trace, arrival_seconds)
        trace = span.traceparent if span else trace
        caller = Caller(arrival_seconds, tenant, routing_key, given, signed.prefill, trace)
        running = planned.running
        pieces = self._counted(generator.pieces(planned.choices, caller), running, caller, span)
        writer = route.writer(planned.asked, planned.envelope, planned.usage)
        try:
            response = await self._respond(writer, request, planned, pieces)
        except (UnavailableError, PrefillUnavailableError):
            # Raises where it is the adapter that is not there any more.
            self._service.adapter_key(planned.asked.requested_model)
            raise
        response.headers.update(planned.headers)
        return response

    def _signed(self, request: Request) -> Signed:
        signatures = self._service.signatures
        signatures.refuse_unsigned(request)
        prefill = self._service.role_check.prefill_of(request)
        private = signatures.read(request, PRIVATE_HEADER, verified_call)
        tenant = signatures.read(request, TENANT_HEADER, verified_tenant)
        headers = {PREFILL_HEADER: prefill, PRIVATE_HEADER: private, TENANT_HEADER: tenant}
        return Signed(
            prefill.content if prefill else None,
            private is not None,
            tenant.content if tenant else None,
            {
                header: signed.body_sha256
                for header, signed in headers.items()
                if signed is not None and signed.body_sha256 is not None
            },
        )

    def _plan(
        self,
        route: Route[RequestT],
        planner: Planner,
        generator: Generator,
        body: bytes,
        signed: Signed,
    ) -> Planned:
        """Runs in a thread: a long body is slow to hash, to parse and to tokenise."""
        refuse_body(signed.digests, body)
        if not signed.private:
            envelope = self._envelope(route, None)
            planner = replace(planner, unix_seconds=envelope.created_unix)
            asked, ignored = self._parsed(route, planner, body, signed.tenant)
            planner = self._adapted(planner, asked)
            choices = [
                BegunChoice(generator.reader(plan, envelope.response_id))
                for plan in route.plan(planner, asked)
            ]
            return Planned(asked, choices, envelope.named(asked.requested_model), ignored, None)
        head, body = opened_call(body, self._service.identity.max_body_bytes)
        envelope = self._envelope(route, head.resume)
        begun_unix = envelope.created_unix
        planner = replace(planner, draw_seed=lambda: head.seed, unix_seconds=begun_unix)
        asked, ignored = self._parsed(route, planner, body, signed.tenant)
        planner = self._adapted(planner, asked)
        plans = route.plan(planner, asked)
        prompts = [plan.prompt_ids for plan in plans[:: asked.choices]]
        start = AnswerStart(
            envelope.response_id,
            envelope.created_unix,
            prompt_hash(prompts, planner.adapter),
            [plan.max_tokens for plan in plans],
            sum(map(len, prompts)),
            self._service.answer_identity(),
        )
        read = partial(generator.reader, response_id=envelope.response_id)
        choices = begun_choices(plans, start, head.resume, planner.vocabulary_size, read)
        return Planned(asked, choices, envelope.named(asked.requested_model), ignored, start)

    def _parsed(
        self,
        route: Route[RequestT],
        planner: Planner,
        body: bytes,
        tenant: TenantClaims | None,
    ) -> tuple[RequestT, list[str]]:
        """The request and its unknown fields."""
        identity = self._service.identity
        refuse_heavy(route.kind, body, planner.limits.request_tokens)
        asked, ignored = parse_request(route.kind, body, strict=identity.strict_requests)
        unread = planner.unread_options(asked, strict=identity.strict_requests)
        named = [quote(path[:_NAME_BYTES], safe="[]/")[:_NAME_BYTES] for path in ignored + unread]
        return of_tenant(asked, tenant), named

    def _adapted(self, planner: Planner, asked: AnsweredRequest) -> Planner:
        """For what the request names as its model, which may be an adapter."""
        return replace(planner, adapter=self._service.adapter_key(asked.requested_model))

    async def _respond(
        self,
        writer: Writer,
        request: Request,
        planned: Planned,
        pieces: AsyncGenerator[Piece, None],
    ) -> Response:
        streams, written = planned.asked.stream, partial(_written, writer)
        if planned.start is not None:
            if streams:
                told = streamed(writer, planned.choices, pieces, planned.start)
            else:
                told = whole_at_end(written, planned.choices, pieces, planned.start)
            return await self._streamed(request, told)
        if streams:
            return await self._streamed(request, _events(writer, pieces))
        collected = await until_client_leaves(request.receive, _collected(pieces))
        if collected is None:
            return self._gone()
        if is_light(collected):
            return WholeAnswer(written(collected))
        return WholeAnswer(await asyncio.to_thread(written, collected))

    async def _streamed(self, request: Request, events: AsyncGenerator[EventT, None]) -> Response:
        """Waits for the first event, so that an early failure has its own status code."""
        first = await until_client_leaves(request.receive, anext(events))
        if first is None:
            await events.aclose()
            return self._gone()
        return EventStream(_with_first(first, events))

    def _span(self, trace: str, arrival_seconds: float) -> RequestSpan | None:
        service = self._service
        clock, role = service.clocks.monotonic, service.identity.role
        return request_span(service.record, trace, arrival_seconds, clock, role)

    async def _counted(
        self,
        pieces: AsyncGenerator[Piece, None],
        choices: int,
        caller: Caller,
        span: RequestSpan | None,
    ) -> AsyncGenerator[Piece, None]:
        """Passes pieces on and counts how the request ended: by the reason of its last choice, or
        as an abort if not all choices finished."""
        outcome, running, failure = "abort" if choices else "stop", choices, None
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    if span is not None:
                        span.token()
                    yield piece
                    if piece.finish_reason is not None:
                        running -= 1
                        outcome = outcome if running else piece.finish_reason
        except (OverloadedError, InvalidRequestError) as error:
            outcome, failure = "refused", str(error)
            raise
        except AbortedError:
            raise
        except Exception as error:
            outcome, failure = "error", str(error)
            names = [name for name in caller.names if is_acceptable_request_id(name)]
            if trace := trace_id(caller.traceparent):
                names.append(f"trace={trace}")
            _log.warning("request %s failed: %s", " ".join(names), error)
            raise
        finally:
            self._service.metrics.ended(outcome)
            if span is not None:
                span.end(outcome, failure)

    def _envelope(self, route: Route[Any], resume: Resume | None) -> Envelope:
        """A new response, or the one that goes on."""
        if resume is not None:
            started = resume.start
            return Envelope(started.id, started.created, self._service.identity.model)
        created = int(self._service.clocks.unix())
        response_id = route.id_prefix + secrets.token_hex(12)
        return Envelope(response_id, created, self._service.identity.model)

    def _gone(self) -> Response:
        return Response(status_code=_CLIENT_CLOSED_REQUEST)


async def _collected(pieces: AsyncGenerator[Piece, None]) -> Sequence[Piece]:
    async with aclosing(pieces):
        return [piece async for piece in pieces]


def _written(writer: Writer, collected: Sequence[Piece]) -> bytes:
    return msgspec.json.encode(writer.whole(collected))


async def _events(
    writer: Writer, pieces: AsyncGenerator[Piece, None]
) -> AsyncGenerator[dict[str, Any] | NamedEvents, None]:
    begun = False
    try:
        async with aclosing(pieces):
            async for piece in pieces:
                light = is_light([piece])
                chunk = writer.of(piece) if light else await asyncio.to_thread(writer.of, piece)
                if chunk:
                    begun = True
                    yield chunk
    except Exception as error:
        ended = writer.failed(error_body(error)["error"]["message"]) if begun else None
        if ended is None:
            raise
        log_unforeseen(error)
        yield ended
        return
    if last := writer.last():
        yield last


async def _with_first(
    first: EventT, rest: AsyncGenerator[EventT, None]
) -> AsyncGenerator[EventT, None]:
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event
