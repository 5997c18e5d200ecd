"""When server-side apply cannot bring our values back: which lists to set as a whole.

Somebody who edits the key of one of our list items (the port of a Service) leaves an item of his
own. Apply keeps that and adds ours beside it, and the API server refuses the pair for their equal
names, for ever. Then the list that it complains of is replaced. Pure: knows no client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from sluice_operator.errors import Cause
from sluice_operator.fields import same_value
from sluice_operator.observed import Manifest

REPAIR_MANAGER: Final = "sluice-operator-repair"
"""Owns what it replaced only until its entry is removed: else no later apply could drop it."""

TANGLES: Final = frozenset({"FieldValueDuplicate", "FieldValueForbidden"})
"""Two items of one name; two sources in one volume."""
OWNERS: Final = "metadata.ownerReferences"
"""Two controllers are a value that is merely invalid."""

JsonPatch = list[dict[str, Any]]


def list_replacements(desired: Manifest, live: Manifest, causes: Iterable[Cause]) -> JsonPatch:
    """Sets the lists of `live` that are not what `desired` says and that the API server has found
    tangled; empty when there is none."""
    tangled = [cause.field for cause in causes if _is_tangle(cause)]
    return [
        {"op": "replace", "path": where, "value": value}
        for where, value in _differing_lists(desired, live, "")
        if any(_is_within(field, where) for field in tangled)
    ]


def disowning(live: Manifest) -> JsonPatch:
    """Removes the repair manager's claim on fields; empty when it has none."""
    entries = live["metadata"].get("managedFields") or ()
    for index, entry in enumerate(entries):
        if entry["manager"] == REPAIR_MANAGER:
            where = f"/metadata/managedFields/{index}"
            return [
                {"op": "test", "path": f"{where}/manager", "value": REPAIR_MANAGER},
                {"op": "remove", "path": where},
            ]
    return []


def _is_tangle(cause: Cause) -> bool:
    return cause.reason in TANGLES or cause.field == OWNERS


def _is_within(field: str, where: str) -> bool:
    """Whether the field is the list at the JSON pointer `where`, or within one of its items."""
    steps = where.removeprefix("/").split("/")
    name = ".".join(step.replace("~1", "/").replace("~0", "~") for step in steps)
    return field == name or field.startswith(f"{name}[")


def _differing_lists(desired: Any, live: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(desired, list) and isinstance(live, list):
        if not same_value(desired, live):
            yield where, desired
    elif isinstance(desired, Mapping) and isinstance(live, Mapping):
        for name, value in desired.items():
            if name in live:
                step = name.replace("~", "~0").replace("/", "~1")
                yield from _differing_lists(value, live[name], f"{where}/{step}")
