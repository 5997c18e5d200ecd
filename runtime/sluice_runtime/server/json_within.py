"""JSON within a text field of a request, read as strictly as the body around it; and what of it
could not be written again. Pure."""

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


def is_plain(value: object) -> bool:
    """Whether a value read from JSON has no NUL in its texts and no number beyond a float's."""
    if isinstance(value, str):
        return "\0" not in value
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(part) for key, part in value.items())
    return not isinstance(value, list) or all(is_plain(part) for part in value)


def infinite_at(value: object) -> str | None:
    """The place in a value read from JSON of a number beyond a float's; None: there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ""
    parts: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        parts = ((f".{key}", part) for key, part in value.items())
    elif isinstance(value, list):
        parts = ((f"[{number}]", part) for number, part in enumerate(value))
    places = (step + below for step, part in parts if (below := infinite_at(part)) is not None)
    return next(places, None)
