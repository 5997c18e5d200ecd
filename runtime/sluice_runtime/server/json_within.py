"""JSON inside a string field of a request, parsed as strictly as the body. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pydantic_core


def json_within(text: str) -> Any:
    """The value that `text` holds.

    Raises:
        ValueError: it is no JSON; NaN is none, and half a surrogate pair is no text.
    """
    return pydantic_core.from_json(text, allow_inf_nan=False)


def infinite_at(value: object) -> str | None:
    """The path of a number that does not fit a float, in a value parsed from JSON; None: there is
    none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        parts = ((f".{key}", part) for key, part in value.items())
    elif isinstance(value, list):
        parts = ((f"[{number}]", part) for number, part in enumerate(value))
    places = (step + below for step, part in parts if (below := infinite_at(part)) is not None)
    return next(places, None)
