"""OpenAI's fields that this version can only take with a value of no effect: one table.

A row leaves it when the feature lands. Any other value is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sluice_contract import http_errors

from sluice_runtime.errors import InvalidRequestError


@dataclass(frozen=True)
class NeutralOnly:
    """The values of a field that ask for nothing; `allowed` is for a person."""

    neutral: tuple[Any, ...]
    allowed: str


_ABSENT: Final = NeutralOnly((None,), "leaving it out")
_FALSE: Final = NeutralOnly((None, False), "false")
_ONE: Final = NeutralOnly((None, 1), "1")
_EMPTY_LIST: Final = NeutralOnly((None, []), "[]")
_EMPTY_OBJECT: Final = NeutralOnly((None, {}), "{}")
_NO_TOOL: Final = NeutralOnly((None, "none", "auto"), '"none" or "auto"')

ROWS: Final[Mapping[str, NeutralOnly]] = {
    "audio": _ABSENT,
    "best_of": _ONE,
    "function_call": _NO_TOOL,
    "functions": _EMPTY_LIST,
    "metadata": _EMPTY_OBJECT,
    "modalities": NeutralOnly((None, ["text"]), '["text"]'),
    "prediction": _ABSENT,
    "reasoning_effort": NeutralOnly((None, "none"), '"none"'),
    "service_tier": NeutralOnly((None, "auto", "default"), '"auto" or "default"'),
    "store": _FALSE,
    "suffix": NeutralOnly((None, ""), '""'),
    "verbosity": _ABSENT,
    "web_search_options": _ABSENT,
}

MESSAGE_ROWS: Final[Mapping[str, NeutralOnly]] = {
    "annotations": _EMPTY_LIST,
    "audio": _ABSENT,
    "function_call": _ABSENT,
}
"""The same of a message: OpenAI's client writes them, as null, when it sends an answer back."""


def without_neutral_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """`message` less the fields of its table that ask for nothing; others are unknown fields."""
    return {
        key: value
        for key, value in message.items()
        if key not in MESSAGE_ROWS or not _is_neutral(MESSAGE_ROWS[key], value)
    }


def without_neutral_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """`body` less the fields of the table.

    Raises:
        InvalidRequestError: one of them asks for something.
    """
    for key in body.keys() & ROWS.keys():
        if not _is_neutral(ROWS[key], body[key]):
            raise InvalidRequestError(
                f"{key}: {http_errors.shown_json(body[key])} is not implemented yet; "
                f"allowed: {ROWS[key].allowed}",
                key,
            )
    return {key: value for key, value in body.items() if key not in ROWS}


def _is_neutral(row: NeutralOnly, value: object) -> bool:
    return any(_same(value, neutral) for neutral in row.neutral)


def _same(value: object, neutral: object) -> bool:
    """Equal as JSON values: false is not 0, though Python's is."""
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
