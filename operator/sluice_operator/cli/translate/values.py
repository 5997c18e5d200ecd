"""How other engines write values, and ours for them. Pure; raises for what is not understood."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

Convert = Callable[[str], Any]
"""Text of a flag → our value. Raises ValueError, saying what is allowed."""

_FACTORS: Final = {"": 1, "k": 1000, "K": 1024, "m": 10**6, "M": 2**20}


def number(text: str) -> int:
    """An integer, also with k, K, m or M behind it (thousands or 1,024s)."""
    if not (match := re.fullmatch(r"(-?\d+(?:\.\d+)?)([kKmM]?)", text)):
        raise ValueError("a whole number")
    value = float(match[1]) * _FACTORS[match[2]]
    if value != int(value):
        raise ValueError("a whole number")
    return int(value)


def fraction(text: str) -> float:
    """A decimal number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError("a number") from None


def text_value(text: str) -> str:
    """The text itself."""
    return text


def one_of(names: Mapping[str, Any]) -> Convert:
    """Their name → ours; anything else is refused."""

    def convert(text: str) -> Any:
        if text not in names:
            raise ValueError(", ".join(names))
        return names[text]

    return convert


def model_uri(text: str) -> str:
    """A folder, or a model of the hub."""
    if "://" in text:
        return text
    if text.startswith("/"):
        return f"file://{text}"
    if text.count("/") == 1:
        return f"hf://{text}"
    raise ValueError("/a/folder or organisation/name")


DTYPES: Final = one_of(
    {
        "auto": "auto",
        "half": "float16",
        "float16": "float16",
        "bfloat16": "bfloat16",
        "float": "float32",
        "float32": "float32",
    }
)
KV_DTYPES: Final = one_of(
    {"auto": "auto", "float16": "float16", "bfloat16": "bfloat16", "float32": "float32"}
)
