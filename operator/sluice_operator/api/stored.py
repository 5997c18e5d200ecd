"""A document as the API server reads it: equal values there are equal here.

The keys of a model matter, because a null at one of them counts as left out. Refuses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

from pydantic import BaseModel
from sluice_contract.error_text import Location, known_keys, models_at
from sluice_contract.log_lines import shown_json

from sluice_operator.api.base import REFUSES_NULL

INT64: Final = range(-(2**63), 2**63)


class BeyondInt64(float):
    """A whole number of more than 64 bits. It is no integer for the API server, but is shown as it
    was written."""

    def __new__(cls, value: float) -> Self:
        """Loses the precision of `value`; its text in `written` keeps every digit."""
        self = super().__new__(cls, str(value))
        self.written = str(value) if isinstance(value, int) else shown_json(value)
        return self

    written: str


def as_stored(value: Any, kind: type[BaseModel], location: Location = ()) -> Any:
    """`value` at `location` of a `kind`, normalised: 2.0 is 2, keys are text, null is left out. A
    null stays where it is refused later: at an unknown key, in a list, or in a field that refuses
    it."""
    if isinstance(value, list):
        return [as_stored(entry, kind, (*location, index)) for index, entry in enumerate(value)]
    if isinstance(value, Mapping):
        schema_keys = known_keys(kind, location)
        named = {_text(key): below for key, below in value.items()}
        return {
            key: as_stored(below, kind, (*location, key))
            for key, below in named.items()
            if below is not None
            or (schema_keys and key not in schema_keys)
            or key in _refusing_null(kind, location)
        }
    if isinstance(value, str):
        return _text(value)
    return _number(value) if isinstance(value, int | float) else value


def without_nulls(kind: type[BaseModel], value: Mapping[str, Any]) -> dict[str, Any]:
    """A stored object of `kind` without the nulls that the API server keeps, which count as left
    out. Nulls of its top-level fields that refuse null stay."""
    kept = _refusing_null(kind, ())
    return {
        key: _without_nulls(below)
        for key, below in value.items()
        if below is not None or key in kept
    }


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        items = value.items()
        return {key: _without_nulls(below) for key, below in items if below is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _refusing_null(kind: type[BaseModel], location: Location) -> set[str]:
    """The fields of the object at `location` whose null does not count as left out."""
    return {
        field.alias or name
        for model in models_at(kind, location)
        for name, field in model.model_fields.items()
        if field.json_schema_extra == REFUSES_NULL
    }


def _text(value: object) -> str:
    """`value` as a key or text of JSON; half a surrogate pair is no character."""
    text = value if isinstance(value, str) else shown_json(value)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _number(value: float) -> float:
    """A whole number is an integer, however it is written, but none beyond 64 bits."""
    if isinstance(value, bool) or (isinstance(value, int) and value in INT64):
        return value
    number = float(str(value))
    if number.is_integer() and int(number) in INT64:
        return int(number)
    is_whole = isinstance(value, int) or number.is_integer()
    return BeyondInt64(value) if is_whole else number
