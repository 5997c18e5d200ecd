"""What is read of a request before its JSON is parsed: routing key, body, number of values.

Knows the fields' names, not their contents.
"""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import msgspec
from fastapi import Request
from sluice_contract import http_errors
from sluice_contract.http_errors import (
    BODY_SECONDS,
    ROUTING_KEY_HEADER,
    is_acceptable_routing_key,
)
from sluice_contract.wire.json_weight import LIGHT_BYTES, MAX_VALUES, count_values
from sluice_contract.wire.spans import TRACEPARENT_HEADER, trace_id

from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.failures import MistakenError
from sluice_runtime.server.protocol import MAX_PROMPTS
from sluice_runtime.server.request_model import RequestModel


def routing_key_of(request: Request) -> str:
    """The request's routing key; empty when it has none.

    Raises:
        InvalidRequestError: it is too long, or not of the characters allowed.
    """
    given = request.headers.get(ROUTING_KEY_HEADER, "")
    if given and not is_acceptable_routing_key(given):
        raise InvalidRequestError(
            f"{ROUTING_KEY_HEADER}: {http_errors.shown_json(given)} is not allowed; allowed: 1 to "
            "128 letters, digits and the characters - _ . : / @",
            ROUTING_KEY_HEADER,
        )
    return given


def traceparent_of(request: Request) -> str:
    """The request's trace; empty when it has none."""
    given = request.headers.get(TRACEPARENT_HEADER, "")
    return given if trace_id(given) else ""


async def read_body(request: Request, max_bytes: int, seconds: float = BODY_SECONDS) -> bytes:
    """The body.

    Raises:
        MistakenError: it is compressed, is longer than `max_bytes` (no more of it is read), or
            did not come within `seconds`.
        starlette.requests.ClientDisconnect: the client went before all of it came.
    """
    if mistake := http_errors.wrong_encoding(request.headers.get("content-encoding")):
        raise MistakenError(mistake)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise MistakenError(http_errors.body_too_large(max_bytes))
    try:
        async with asyncio.timeout(seconds):
            return await _read(request, max_bytes)
    except TimeoutError:
        raise MistakenError(http_errors.body_too_late(seconds)) from None


async def _read(request: Request, max_bytes: int) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise MistakenError(http_errors.body_too_large(max_bytes))
    return bytes(body)


def refuse_heavy(kind: type[RequestModel], body: bytes, prompt_tokens: int) -> None:
    """`prompt_tokens`: how many token ids a prompt may have.

    Raises:
        InvalidRequestError: the body holds too many values; `param` is the field that does.
        MistakenError: besides, it is no JSON object.
    """
    if len(body) <= LIGHT_BYTES:
        return
    counts = count_values(body)
    token_ids = min(counts.lists, MAX_PROMPTS) * prompt_tokens
    if (
        counts.texts + counts.lists + counts.objects <= MAX_VALUES
        and counts.commas <= MAX_VALUES + token_ids
    ):
        return
    field = _largest(kind, body)
    raise InvalidRequestError(
        f"{field or 'the body'}: holds too many values; allowed: {MAX_VALUES} texts, lists and "
        f"objects, as many numbers, and {prompt_tokens} token ids a prompt",
        field,
    )


def _largest(kind: type[RequestModel], body: bytes) -> str | None:
    """The known field that takes most of the body; None if no field does."""
    try:
        fields = msgspec.json.decode(body, type=_raw_fields(kind))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise MistakenError(http_errors.not_json(body)) from None
    sizes = {name: len(getattr(fields, name)) for name in fields.__struct_fields__}
    largest = max(sizes, key=lambda name: sizes[name])
    return largest if 2 * sizes[largest] > len(body) else None


@cache
def _raw_fields(kind: type[RequestModel]) -> Any:
    """A type whose decoder skips the values of all fields without creating objects."""
    names = [field.alias or name for name, field in kind.model_fields.items()]
    return msgspec.defstruct("Fields", [(name, msgspec.Raw, msgspec.Raw()) for name in names])
