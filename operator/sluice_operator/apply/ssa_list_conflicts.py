"""Lists to replace as a whole, where server-side apply cannot restore our values.

Pure. If somebody edits the key of one of our list items (the port of a Service), the item becomes
the editor's. Apply keeps that item and adds ours. The API server refuses every such request because
both items have one name. The refused list is then replaced.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from sluice_operator.apply.ssa_diff import same_value
from sluice_operator.kube.errors import Cause
from sluice_operator.kube.kinds import Manifest

REPAIR_MANAGER: Final = "sluice-operator-repair"
"""Field manager of repairs. It is removed from managedFields at once, because no later apply could
remove its fields."""

CONFLICT_REASONS: Final = frozenset({"FieldValueDuplicate", "FieldValueForbidden"})
"""Causes of a list conflict: two items of one name, or two sources in one volume."""
OWNERS: Final = "metadata.ownerReferences"
"""Path of the owner references: two controllers are refused without one of `CONFLICT_REASONS`."""

JsonPatch = list[dict[str, Any]]


def list_replacements(desired: Manifest, live: Manifest, causes: Iterable[Cause]) -> JsonPatch:
    """Replaces the lists of `live` that differ from `desired` and that the API server has refused;
    empty when there is none."""
    conflicts = [cause.field for cause in causes if _is_list_conflict(cause)]
    return [
        {"op": "replace", "path": where, "value": value}
        for where, value in _differing_lists(desired, live, "")
        if any(_is_within(field, where) for field in conflicts)
    ]


def ownership_removal(live: Manifest) -> JsonPatch:
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


def _is_list_conflict(cause: Cause) -> bool:
    return cause.reason in CONFLICT_REASONS or cause.field == OWNERS


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
