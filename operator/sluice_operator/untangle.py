"""When server-side apply cannot bring our values back: which lists to set as a whole.

Somebody who edits the key of one of our list items (the port of a Service) leaves an item of his
own. Apply keeps that and adds ours beside it, and the API server refuses the pair for their equal
names, for ever. Then the lists that differ are replaced. Pure: knows no client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sluice_operator.fields import same_value
from sluice_operator.observed import Manifest

REPAIR_MANAGER: Final = "sluice-operator-repair"
"""Owns what it replaced only until its entry is removed: else no later apply could drop it."""

JsonPatch = list[dict[str, Any]]


def list_replacements(desired: Manifest, live: Manifest) -> JsonPatch:
    """Sets every list of `live` that is not what `desired` says; empty when there is none."""
    return [
        {"op": "replace", "path": where, "value": value}
        for where, value in _differing_lists(desired, live, "")
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


def _differing_lists(desired: Any, live: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(desired, list) and isinstance(live, list):
        if not same_value(desired, live):
            yield where, desired
    elif isinstance(desired, Mapping) and isinstance(live, Mapping):
        for name, value in desired.items():
            if name in live:
                step = name.replace("~", "~0").replace("/", "~1")
                yield from _differing_lists(value, live[name], f"{where}/{step}")
