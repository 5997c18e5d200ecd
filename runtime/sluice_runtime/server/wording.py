"""What a field takes, in plain words: one row for each kind of finding the request models can make.

Knows pydantic's names of findings, none of its sentences, and no field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic_core import ErrorDetails

Words = Callable[[Mapping[str, Any]], str]


def _always(words: str) -> Words:
    return lambda context: words


WORDS: Final[Mapping[str, Words]] = {
    "bool_type": _always("true or false"),
    "dict_type": _always("an object"),
    "finite_number": _always("a finite number"),
    "float_type": _always("a number"),
    "greater_than": lambda context: f"more than {_number(context['gt'])}",
    "greater_than_equal": lambda context: f"{_number(context['ge'])} or more",
    "int_from_float": _always("an integer"),
    "int_type": _always("an integer"),
    "less_than": lambda context: f"less than {_number(context['lt'])}",
    "less_than_equal": lambda context: f"{_number(context['le'])} or less",
    "list_type": _always("a list"),
    "literal_error": lambda context: str(context["expected"]),
    "model_type": _always("an object"),
    "string_pattern_mismatch": lambda context: f"text that matches {context['pattern']}",
    "string_too_long": lambda context: f"at most {_count(context['max_length'], 'character')}",
    "string_too_short": lambda context: f"at least {_count(context['min_length'], 'character')}",
    "string_type": _always("a string"),
    "too_long": lambda context: f"{_holder(context)} of at most {_items(context['max_length'])}",
    "too_short": lambda context: f"a list of at least {_items(context['min_length'])}",
    "value_error": lambda context: str(context["error"]),
}
"""By pydantic's type of the finding; `missing` and `extra_forbidden` are about keys, not values."""


def allowed_words(finding: ErrorDetails) -> str:
    """What would have been allowed where `finding` was made."""
    return WORDS[finding["type"]](finding.get("ctx", {}))


def _items(number: int) -> str:
    return _count(number, "item")


def _holder(context: Mapping[str, Any]) -> str:
    return "an object" if context["field_type"] == "Dictionary" else "a list"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
