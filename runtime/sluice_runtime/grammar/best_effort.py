"""Best-effort schemas: leaves out keywords that the grammar library does not accept. Imports no
torch.

The library refuses a schema only as a whole. So the search looks for the smallest part that the
library refuses by itself, and for the keyword to blame in it. All checks of a request get at most
`MAX_CHECKED_CHARACTERS`; a check starts only while they have used less than `MAX_CHECK_SECONDS` of
processor time. A schema whose checks use up either limit is given up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sluice_runtime.errors import GrammarUnavailableError
from sluice_runtime.grammar.constraint import (
    CheckBudget,
    ChecksSpentError,
    culprit,
    innermost_invalid,
    invalid_patterns,
    with_deep_stack,
)
from sluice_runtime.grammar.json_schema import Usable
from sluice_runtime.grammar.schema_keywords import LEFT_WITH, at


def without_patterns(usable: Usable, budget: CheckBudget) -> list[str] | None:
    """Removes unaccepted patterns from a schema; returns the places of what was removed. None: the
    schema is given up."""
    return _within(lambda: _without_patterns(usable, budget))


def _without_patterns(usable: Usable, budget: CheckBudget) -> list[str]:
    places = dict[str, None]()
    for place, part, _ in invalid_patterns(usable.schema, budget):
        del part["pattern"]
        places[at(_origin(usable, place), "pattern")] = None
    return [*places]


def fitted(usable: Usable, budget: CheckBudget) -> list[str] | None:
    """Removes every unaccepted keyword from a schema; returns the places of what was removed. None:
    the schema is given up."""
    return _within(lambda: _fitted(usable, budget))


def _within(search: Callable[[], list[str] | None]) -> list[str] | None:
    """Result of a search; None if the budget of checks runs out first, or the library fails."""

    def run() -> list[str] | None:
        try:
            return search()
        except ChecksSpentError:
            return None

    try:
        return with_deep_stack(run)
    except GrammarUnavailableError:
        return None


def _fitted(usable: Usable, budget: CheckBudget) -> list[str] | None:
    root = usable.schema
    places = _without_patterns(usable, budget)
    while reason := budget.invalid(root, root):
        place, part, _ = innermost_invalid(root, lambda part: budget.invalid(root, part), reason)
        keys = _culprits(root, part, budget)
        if not keys and (part is root or not part):  # nothing more can be removed
            return None
        for key in keys or list(part):
            part.pop(key, None)
            part.pop(LEFT_WITH.get(key, ""), None)
        origin = _origin(usable, place)
        places += [at(origin, key) for key in keys] or [origin]
    return list(dict.fromkeys(places))


def _culprits(root: Any, part: dict[str, Any], budget: CheckBudget) -> list[str]:
    """One keyword without which the library accepts a schema, or else all keywords that it refuses
    by themselves."""

    def invalid(schema: Any) -> str:
        return budget.invalid(root, schema)

    if (key := culprit(part, invalid)) is not None:
        return [key]
    keys = part.keys() - {"$defs", "definitions"}
    return [key for key in sorted(keys) if invalid({key: part[key]})]


def _origin(usable: Usable, place: str) -> str:
    """A place of the usable schema as a place in the client's schema."""
    for now, before in usable.moved.items():
        if place == now or place.startswith(f"{now}."):
            return (before + place[len(now) :]).lstrip(".")
    return place
