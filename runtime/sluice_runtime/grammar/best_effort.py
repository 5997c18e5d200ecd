"""Best-effort schemas: keywords that the grammar library does not take are left out. Imports no
torch.

The library refuses a schema as a whole. The smallest part that it does not take by itself is looked
for, and the keyword without which it takes that part.
"""

from __future__ import annotations

from typing import Any, Final

from sluice_runtime.errors import GrammarUnavailableError
from sluice_runtime.grammar.constraint import (
    culprit,
    innermost_invalid,
    invalid_schema,
    with_deep_stack,
)
from sluice_runtime.grammar.json_schema import Usable
from sluice_runtime.grammar.schema_keywords import LEFT_WITH, at

MAX_CHECKED_CHARACTERS: Final = 1_000_000
"""Of schemas that are checked for one request, in all: about a second of a processor."""
_CHECK_CHARACTERS: Final = 1_000
"""What a check costs beside the schema's length."""


class CheckBudget:
    """What the checks of one request may still cost."""

    def __init__(self) -> None:
        self._characters = MAX_CHECKED_CHARACTERS

    def invalid(self, root: Any, part: Any) -> str:
        """Why the library does not take a part of a schema; `_SpentError`: nobody knows."""
        self._characters -= _CHECK_CHARACTERS + len(str(part))
        if self._characters < 0:
            raise _SpentError
        return invalid_schema(root, part)


class _SpentError(Exception):
    """No more checks are made for the request."""


def fitted(usable: Usable, budget: CheckBudget) -> list[str] | None:
    """Takes what the library does not take out of a schema; the places that were left out. None:
    the schema is given up."""
    try:
        return with_deep_stack(lambda: _fitted(usable, budget))
    except GrammarUnavailableError:
        return None


def _fitted(usable: Usable, budget: CheckBudget) -> list[str] | None:
    root, places = usable.schema, list[str]()
    try:
        while reason := budget.invalid(root, root):
            place, part, _ = innermost_invalid(
                root, lambda part: budget.invalid(root, part), reason
            )
            keys = _culprits(root, part, budget)
            if not keys and part is root:
                return None
            for key in keys or list(part):
                part.pop(key, None)
                part.pop(LEFT_WITH.get(key, ""), None)
            origin = _origin(usable, place)
            places += [at(origin, key) for key in keys] or [origin]
    except _SpentError:
        return None
    return list(dict.fromkeys(places))


def _culprits(root: Any, part: dict[str, Any], budget: CheckBudget) -> list[str]:
    """A keyword without which the library takes a schema, or all that it takes by no means."""

    def invalid(schema: Any) -> str:
        return budget.invalid(root, schema)

    if (key := culprit(part, invalid)) is not None:
        return [key]
    keys = part.keys() - {"$defs", "definitions"}
    return [key for key in sorted(keys) if invalid({key: part[key]})]


def _origin(usable: Usable, place: str) -> str:
    """The place in the client's schema."""
    for now, before in usable.moved.items():
        if place == now or place.startswith(f"{now}."):
            return (before + place[len(now) :]).lstrip(".")
    return place
