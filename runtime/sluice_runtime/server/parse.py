"""From the bytes of a request body to a typed request; every refusal names the field.

Knows nothing of HTTP's reading (see `body`) and nothing of tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import pydantic_core
from pydantic import ValidationError
from pydantic_core import ErrorDetails
from sluice_contract import http_errors
from sluice_contract.places import known_keys
from sluice_contract.wording import allowed_words

from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.failures import MistakenError
from sluice_runtime.server.not_implemented import without_neutral_fields
from sluice_runtime.server.protocol import GenerationRequest
from sluice_runtime.server.repeated_keys import refuse_repeated_keys
from sluice_runtime.server.request_model import RequestModel

_ALTERNATIVES: Final[Mapping[str, str]] = {
    "prompt": "a string, a list of strings, a list of token ids or a list of such lists",
    "stop": "a string or a list of at most 4 strings",
    "content": "a string or a list of text parts",
    "json": "a JSON schema, as an object or as text",
    "guided_json": "a JSON schema, as an object or as text",
}
"""Fields that take several types: what a value of none of them is told."""
_ALTERNATIVE_NAMES: Final = frozenset({"NamedTool", "str"})

ModelT = TypeVar("ModelT", bound=RequestModel)
RequestT = TypeVar("RequestT", bound=GenerationRequest)


def parse_request(kind: type[RequestT], body: bytes) -> RequestT:
    """The request for tokens in a body; raises like `parse_body`."""
    request = _validated(kind, without_neutral_fields(_json_object(body)))
    if misfit := request.misfit():
        field, words = misfit
        raise InvalidRequestError(f"{field}: {words}", field)
    return request


def parse_body(kind: type[ModelT], body: bytes) -> ModelT:
    """What a body holds.

    Raises:
        MistakenError: it is no JSON object.
        InvalidRequestError: `param` is the field at fault, or a key that is given twice.
    """
    return _validated(kind, _json_object(body))


def _validated(kind: type[ModelT], fields: Mapping[str, Any]) -> ModelT:
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _refusal(kind, error) from None


def _json_object(body: bytes) -> dict[str, Any]:
    value = None
    # Whatever begins otherwise is refused unparsed: a list of a million lists costs a second.
    if body.lstrip()[:1] == b"{":
        with suppress(ValueError):
            value = pydantic_core.from_json(body, allow_inf_nan=False)
    if not isinstance(value, dict):
        raise MistakenError(http_errors.not_json(body))
    refuse_repeated_keys(body, value)
    return value


def _refusal(kind: type[RequestModel], error: ValidationError) -> InvalidRequestError:
    """The refusal for the most telling finding."""
    findings = error.errors(include_url=False)
    missing = [_param(one["loc"]) for one in findings if one["type"] == "missing"]
    finding = min(findings, key=lambda one: _rank(one, missing))
    param = _param(finding["loc"])
    field = param.rpartition(".")[2]
    if finding["type"] == "missing":
        return InvalidRequestError(f"{param}: is required", param)
    if finding["type"] == "extra_forbidden":
        return _unknown_field(kind, finding["loc"])
    allowed = allowed_words(kind, finding)
    if field in _ALTERNATIVES and finding["type"].endswith("_type"):
        allowed = _ALTERNATIVES[field]
    last = finding["loc"][-1]
    of_a_token = isinstance(last, str) and last.isdecimal()
    value = http_errors.shown_json({last: finding["input"]} if of_a_token else finding["input"])
    return InvalidRequestError(f"{param}: {value} is not allowed; allowed: {allowed}", param)


def _rank(finding: ErrorDetails, missing: Sequence[str]) -> int:
    """A value, an unknown field (it may be a misspelt one that is then missing), a type, a field
    that is missing: of alternatives, the one that was meant is at fault in the former. Where
    `missing` names a field within the value, that alternative was meant, and the type is right."""
    kind = finding["type"]
    if kind.endswith("_type") or (kind == "literal_error" and isinstance(finding["input"], dict)):
        place = _param(finding["loc"])
        return 4 if any(one.startswith((f"{place}.", f"{place}[")) for one in missing) else 2
    return {"extra_forbidden": 1, "missing": 3}.get(kind, 0)


def _unknown_field(kind: type[RequestModel], location: Sequence[str | int]) -> InvalidRequestError:
    above, key = _param(location[:-1]), http_errors.shown(str(location[-1]))
    param = f"{above}.{key}" if above else key
    known = ", ".join(known_keys(kind, location[:-1]))
    return InvalidRequestError(f"{param}: is not a known field; allowed: {known}", param)


def _param(location: Sequence[str | int]) -> str:
    """A path such as `messages[0].content`, without pydantic's names of alternatives."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in _ALTERNATIVE_NAMES:
            path += f".{part}" if path else part
    return path
