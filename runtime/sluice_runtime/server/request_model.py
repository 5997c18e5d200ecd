"""What all request bodies and their parts share: strict types, and how unknown fields are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict

MAX_IGNORED_FIELDS: Final = 32
"""Most unknown fields that are reported for one request."""


class RequestModel(BaseModel):
    """Base of request bodies and their parts."""

    model_config = ConfigDict(strict=True, frozen=True, hide_input_in_errors=True)


def unknown_fields(body: Mapping[str, Any], request: RequestModel) -> list[str]:
    """Paths of the fields in `body` that the model of `request` does not have, such as
    `messages[].cache_control`; each once, at most `MAX_IGNORED_FIELDS`."""
    found: dict[str, None] = {}
    for path in _unknown(body, request, ""):
        found[path] = None
        if len(found) == MAX_IGNORED_FIELDS:
            break
    return list(found)


def _unknown(value: Mapping[str, Any], model: RequestModel, at: str) -> Iterator[str]:
    attributes = _attributes(type(model))
    if not value.keys() <= attributes.keys():
        yield from (f"{at}{key}" for key in value if key not in attributes)
    for key in value.keys() & attributes.keys():
        part = getattr(model, attributes[key])
        if isinstance(part, RequestModel):
            yield from _unknown(value[key], part, f"{at}{key}.")
        elif isinstance(part, list) and part and isinstance(part[0], RequestModel):
            for given, item in zip(value[key], part, strict=True):
                yield from _unknown(given, item, f"{at}{key}[].")


@cache
def _attributes(kind: type[RequestModel]) -> dict[str, str]:
    """A model's attributes by their names in JSON."""
    return {field.alias or name: name for name, field in kind.model_fields.items()}
