"""What its owner has applied of an EnginePool, told apart from what others have edited of it.

Pure. The server's `managedFields` say what is still the owner's: an edit takes the field from it,
also one that only removes. So the owner leaves a hash of which fields there were, and as long as
what it owns has that hash, the values are its own. A hash of the values would not do: a webhook
may alter them, and they are the owner's all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sluice_contract import labels
from sluice_contract.labels import FIELD_MANAGER

from sluice_operator.digest import digest
from sluice_operator.fields import FieldSet, owned_fields
from sluice_operator.observed import Manifest

APPLIED_FIELDS: Final = f"{labels.GROUP}/applied-fields"
"""Annotation: hash of which fields the owner has applied, whatever their values."""


def with_applied_fields(manifest: Manifest) -> Manifest:
    """`manifest` with the hash of its spec's fields as one more annotation."""
    metadata = manifest["metadata"]
    note = {APPLIED_FIELDS: digest(_structure(manifest["spec"]))}
    annotations = metadata.get("annotations", {}) | note
    return manifest | {"metadata": metadata | {"annotations": annotations}}


def applied_spec(live: Manifest) -> Manifest | None:
    """The spec as its owner has applied it, without what others have added; None when somebody
    has changed or removed a part of it since."""
    if "managedFields" not in live["metadata"]:
        found = live["spec"]  # a manifest that is not in a cluster yet
    else:
        owned = (owned_fields(live, FIELD_MANAGER) or {}).get("f:spec")
        found = _part(owned, live["spec"]) if owned else {}
    noted = (live["metadata"].get("annotations") or {}).get(APPLIED_FIELDS)
    return found if noted == digest(_structure(found)) else None


def edits(live: Manifest) -> tuple[str, ...]:
    """Which fields of the spec others than the owner have set, and as which manager."""
    return tuple(
        f"spec.{key.removeprefix('f:')} by {entry['manager']}"
        for entry in live["metadata"].get("managedFields") or ()
        if entry["manager"] != FIELD_MANAGER
        for key in (entry.get("fieldsV1") or {}).get("f:spec", {})
        if key != "."
    )


def _structure(value: Any) -> Any:
    """Which fields there are. What is empty does not count: it may be stored or not."""
    if isinstance(value, Mapping):
        return {k: _structure(v) for k, v in value.items() if v not in ({}, [], None)}
    if isinstance(value, list):
        return sorted(map(_structure, value), key=lambda item: json.dumps(item, sort_keys=True))
    return 0


def _part(owned: FieldSet, live: Any) -> Any:
    """The part of `live` that is in `owned`, in the order of `live`."""
    below = {key: inner for key, inner in owned.items() if key != "."}
    if not below:
        # No map of a pool's spec is atomic: one that is owned without its fields was empty.
        return {} if isinstance(live, Mapping) else live
    if isinstance(live, Mapping):
        named = ((key.removeprefix("f:"), inner) for key, inner in below.items())
        return {name: _part(inner, live[name]) for name, inner in named if name in live}
    return list(_items(below, live)) if isinstance(live, list) else live


def _items(owned: FieldSet, live: list[Any]) -> Iterator[Any]:
    names = [(*_named(key), inner) for key, inner in owned.items()]
    for item in live:
        for by_key, wanted, inner in names:
            if (wanted.items() <= item.items()) if by_key else (wanted == item):
                yield _part(inner, item)


def _named(key: str) -> tuple[bool, Any]:
    """Whether a list item is named by its key fields, or else by its value; and these."""
    kind, _, text = key.partition(":")
    return kind == "k", json.loads(text)
