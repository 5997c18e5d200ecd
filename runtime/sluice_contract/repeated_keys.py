"""Keys that a JSON object has twice, of which parsers let the last win without a word. Pure."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

AGAIN: Final = "is given again; allowed: once"


class RepeatedKey(NamedTuple):
    """One key that stands twice in an object."""

    key: str
    outermost: bool
    """Whether that is the object around all others."""


def repeated_key(text: str | bytes) -> RepeatedKey | None:
    """Such a key anywhere in a text that is known to be JSON, an inner one first."""
    found: list[str] = []
    seen_in_last = 0

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal seen_in_last
        seen_in_last, keys = len(found), set[str]()
        for key, _ in pairs:
            if key in keys:
                found.append(key)
                return
            keys.add(key)

    json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str)
    # The outermost object ends last, so it was looked at last.
    return RepeatedKey(found[0], seen_in_last == 0) if found else None
