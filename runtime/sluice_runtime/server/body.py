"""Parses the bytes of a request into a typed request; every refusal names the field.

Reads the body, counts its values before parsing the JSON, then validates its fields. Also reads the
headers that any client may set: routing key and trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import pydantic_core
from fastapi import Request
from pydantic import ValidationError
from sluice_contract import http_errors
from sluice_contract.error_text import (
    Location,
    findings_of,
    known_keys,
    path_of,
    text_of,
    unknown_field,
)
from sluice_contract.http_heads import BODY_SECONDS, ROUTING_KEY_HEADER, is_acceptable_routing_key
from sluice_contract.log_lines import shown, shown_json
from sluice_contract.wire.json_weight import LIGHT_BYTES, MAX_VALUES, count_values
from sluice_contract.wire.spans import TRACEPARENT_HEADER, trace_id

from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.content import Unseen
from sluice_runtime.server.failures import MistakenError
from sluice_runtime.server.fields import (
    MAX_IGNORED_FIELDS,
    OTHER_NAMES,
    AnsweredRequest,
    NotImplementedFields,
    RequestModel,
)
from sluice_runtime.server.protocol import MAX_PROMPTS

_NOT_IMPLEMENTED: Final = {
    field.alias or name for name, field in NotImplementedFields.model_fields.items()
}
ModelT = TypeVar("ModelT", bound=RequestModel)
RequestT = TypeVar("RequestT", bound=AnsweredRequest)


def routing_key_of(request: Request) -> str:
    """The request's routing key; empty when it has none.

    Raises:
        InvalidRequestError: the key is too long or has characters that are not allowed.
    """
    routing_key = request.headers.get(ROUTING_KEY_HEADER, "")
    if routing_key and not is_acceptable_routing_key(routing_key):
        raise InvalidRequestError(
            f"{ROUTING_KEY_HEADER}: {shown_json(routing_key)} is not allowed; allowed: "
            "1 to 128 letters, digits and the characters - _ . : / @",
            ROUTING_KEY_HEADER,
        )
    return routing_key


def traceparent_of(request: Request) -> str:
    """The request's trace; empty when it has none."""
    traceparent = request.headers.get(TRACEPARENT_HEADER, "")
    return traceparent if traceparent and trace_id(traceparent) else ""


async def read_body(request: Request, max_bytes: int, seconds: float = BODY_SECONDS) -> bytes:
    """The body.

    Raises:
        MistakenError: the body is compressed, is longer than `max_bytes` (the rest is not read), or
            did not arrive within `seconds`.
        starlette.requests.ClientDisconnect: the client disconnected before the body was complete.
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
    """Refuses a body with too many values. `prompt_tokens`: how many token ids a prompt may have.

    Raises:
        InvalidRequestError: the body holds too many values; `param` is its largest field.
        MistakenError: it is no JSON object.
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


class ParsedBody(NamedTuple, Generic[RequestT]):
    """A parsed request."""

    request: RequestT
    ignored: list[str]
    """Paths of unknown fields, and names of fields whose value was not used."""


def parse_request(kind: type[RequestT], body: bytes, *, strict: bool) -> ParsedBody[RequestT]:
    """Parses the body of a route that generates; `strict`: unknown fields are refused. Raises like
    `parse_body`."""
    fields, unused = _renamed(kind, _json_object(body)), list[str]()
    request = _validated(kind, fields, unused, strict=strict)
    if contradiction := request.contradiction():
        field, words = contradiction
        raise InvalidRequestError(f"{field}: {words}", field)
    ignored = dict.fromkeys([*_unknown_fields(fields, request), *unused])
    return ParsedBody(request, list(ignored)[:MAX_IGNORED_FIELDS])


def _renamed(kind: type[RequestModel], fields: dict[str, Any]) -> dict[str, Any]:
    """`fields` with clients' alternative names replaced by the model's names.

    Raises:
        InvalidRequestError: a field is given under two names, with different values.
    """
    for other, name in OTHER_NAMES.items():
        if other not in fields or name not in kind.model_fields:
            continue
        value, own = fields[other], fields.get(name)
        if value is not None and own is not None and value != own:
            raise InvalidRequestError(
                f"{other}: {shown_json(value)} beside {name} "
                f"{shown_json(own)} is not allowed; allowed: one of the two, or the "
                "same in both",
                other,
            )
        fields = {key: given for key, given in fields.items() if key != other}
        fields |= {name: own if value is None else value}
    return fields


def parse_body(kind: type[ModelT], body: bytes) -> ModelT:
    """Parses a body; unknown fields are ignored.

    Raises:
        MistakenError: it is no JSON object.
        InvalidRequestError: `param` is the field at fault.
    """
    return _validated(kind, _renamed(kind, _json_object(body)), [], strict=False)


def _validated(
    kind: type[ModelT], fields: Mapping[str, Any], unused: list[str], *, strict: bool
) -> ModelT:
    """Validates fields. `unused`: list to which names of fields with unused values are added."""
    if strict and len(fields) > len(kind.model_fields):  # an error for each takes too long
        known = known_keys(kind, ())
        raise _unknown_field(kind, [next(key for key in fields if key not in known)])
    try:
        return kind.model_validate(
            fields,
            extra="forbid" if strict else "ignore",
            context={"strict": strict, "ignored": unused},
        )
    except ValidationError as error:
        raise refusal_of(kind, error) from None


def _json_object(body: bytes) -> dict[str, Any]:
    value = None
    # A body that is not an object is refused unparsed: parsing a million lists takes a second.
    if body.lstrip()[:1] == b"{":
        with suppress(ValueError):
            value = pydantic_core.from_json(body, allow_inf_nan=False)
    if not isinstance(value, dict):
        raise MistakenError(http_errors.not_json(body))
    return value


def _unknown_fields(body: Mapping[str, Any], request: RequestModel) -> list[str]:
    """Paths of fields in `body` that the type of `request` lacks, such as
    `messages[].cache_control`; each path once, at most `MAX_IGNORED_FIELDS`."""
    paths: dict[str, None] = {}
    for path in _unknown(body, request, ""):
        paths[path] = None
        if len(paths) == MAX_IGNORED_FIELDS:
            break
    return list(paths)


def _unknown(value: Mapping[str, Any], model: RequestModel, at: str) -> Iterator[str]:
    if isinstance(model, Unseen):  # an unseen part is reported as a whole
        return
    attributes = _attributes(type(model))
    if not value.keys() <= attributes.keys():
        yield from (f"{at}{key}" for key in value if key not in attributes)
    for key in value.keys() & attributes.keys():
        part = getattr(model, attributes[key])
        if isinstance(part, RequestModel):
            yield from _unknown(value[key], part, f"{at}{key}.")
        elif isinstance(part, list) and part and isinstance(part[0], RequestModel):
            for item_value, item_model in zip(value[key], part, strict=True):
                yield from _unknown(item_value, item_model, f"{at}{key}[].")


@cache
def _attributes(kind: type[RequestModel]) -> dict[str, str]:
    """A model's attributes by their names in JSON."""
    return {field.alias or name: name for name, field in kind.model_fields.items()}


def refusal_of(kind: type[RequestModel], error: ValidationError) -> InvalidRequestError:
    """The refusal for the first of pydantic's findings."""
    finding = findings_of(error)[0]
    param, last = _param(finding["loc"]), finding["loc"][-1]
    if finding["type"] == "extra_forbidden":
        return _unknown_field(kind, finding["loc"])
    if isinstance(last, str) and last.isdecimal():  # a token id as a key, which the path leaves out
        finding["input"] = {last: finding["input"]}
    name = param.removeprefix("sampling_params.")
    unsupported = name in _NOT_IMPLEMENTED or finding["type"] == "none_required"
    what = "not implemented yet: " if unsupported else ""
    return InvalidRequestError(f"{param}: {what}{text_of(kind, finding)}", param)


def _unknown_field(kind: type[RequestModel], location: Location) -> InvalidRequestError:
    above, key = _param(location[:-1]), shown(str(location[-1]))
    param = f"{above}.{key}" if above else key
    says = unknown_field(key, known_keys(kind, location[:-1]))
    return InvalidRequestError(f"{param}: {says} (strictRequests)", param)


def _param(location: Location) -> str:
    """A path such as `messages[0].content`, without tags of alternatives."""
    return path_of([part for part in location if isinstance(part, int) or part.isidentifier()])
