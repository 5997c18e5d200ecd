"""Whether an apply would change anything: a desired manifest against a live object.

Pure. The live object's `managedFields` say which fields this manager owns, and how the server keys
each list, so no schema is needed. If another manager changes an owned value, the field leaves our
set. So equal sets and equal values mean that an apply changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sluice_operator.api.quantities import amount
from sluice_operator.kube.kinds import Manifest

FieldSet = dict[str, Any]
"""FieldsV1: `f:NAME`, `k:{KEY FIELDS}` and `v:VALUE` to the set below; `.` is the node itself."""

_ABSENT: Final = object()
_IDENTITY: Final = ("name", "namespace", "uid")
_DEFAULTS: Final = {
    "apiVersion": "v1", "divisor": "0", "expirationSeconds": 3600, "protocol": "TCP",
}  # fmt: skip
"""Defaults that the server adds inside atomic values: of fieldRef, resourceFieldRef,
serviceAccountToken and NetworkPolicy ports. Dropping a default from a manifest changes nothing."""
_QUANTITY_PARENTS: Final = frozenset({"limits", "requests", "sizeLimit", "hard"})


def owned_fields(live: Manifest, manager: str, subresource: str = "") -> FieldSet | None:
    """Fields that `manager` owns in `live` by server-side apply; None when it never applied."""
    for entry in live["metadata"].get("managedFields") or ():
        if (
            entry.get("manager") == manager
            and entry.get("operation") == "Apply"
            and entry.get("subresource", "") == subresource
        ):
            return dict(entry.get("fieldsV1") or {})
    return None


def is_applied(desired: Manifest, live: Manifest, manager: str, subresource: str = "") -> bool:
    """True when `manager` owns exactly the fields of `desired`, with the values of `desired`."""
    owned = owned_fields(live, manager, subresource)
    if owned is None:
        return False
    return _same_tree(body_of(desired), owned, live, quantity=False)


def changed_fields(desired: Manifest, live: Manifest, manager: str) -> tuple[str, ...]:
    """The fields of `desired` whose values differ in `live`, for example `spec.replicas`."""
    owned = owned_fields(live, manager) or {}
    return tuple(
        ".".join(path)
        for path, value in _upper_fields(body_of(desired))
        if not _same_field(path, value, owned, live)
    )


def _upper_fields(body: Manifest) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Paths and values: the fields of metadata, spec and other sections, and values without a
    section."""
    for section, value in body.items():
        if isinstance(value, dict):
            yield from (((section, name), below) for name, below in value.items())
        else:
            yield (section,), value


def _same_field(path: tuple[str, ...], value: Any, owned: FieldSet, live: Any) -> bool:
    for name in path:
        owned = owned.get(f"f:{name}", {})
        live = live.get(name, _ABSENT) if isinstance(live, Mapping) else _ABSENT
    # The server does not store empty values.
    return not value if live is _ABSENT else _same_tree(value, owned, live, quantity=False)


def body_of(desired: Manifest) -> Manifest:
    """The part of a manifest that can be owned: without what names the object."""
    body = {key: value for key, value in desired.items() if key not in ("apiVersion", "kind")}
    metadata = {k: v for k, v in desired.get("metadata", {}).items() if k not in _IDENTITY}
    body.pop("metadata", None)
    return {**body, "metadata": metadata} if metadata else body


def _same_tree(desired: Any, owned: FieldSet, live: Any, *, quantity: bool) -> bool:
    """Whether `desired` and `live`, both at one path, agree; `owned` is our part of the tree below
    it."""
    children = {key: below for key, below in owned.items() if key != "."}
    if not children:
        return same_value(desired, live, quantity=quantity)
    if isinstance(desired, dict) and isinstance(live, Mapping):
        return _same_map(desired, children, live, quantity=quantity)
    if isinstance(desired, list) and isinstance(live, list):
        return _same_list(desired, children, live)
    return False


def _same_map(
    desired: dict[str, Any], owned: FieldSet, live: Mapping[str, Any], *, quantity: bool
) -> bool:
    if {f"f:{name}" for name in desired} != owned.keys():
        return False
    return all(
        _same_tree(
            value,
            owned[f"f:{name}"],
            live[name],
            quantity=quantity or name in _QUANTITY_PARENTS,
        )
        # The server does not store empty values: we own the field, and it is not there.
        if name in live
        else not value
        for name, value in desired.items()
    )


def _same_list(desired: list[Any], owned: FieldSet, live: list[Any]) -> bool:
    if len(owned) != len(desired):
        return False
    for key, below in owned.items():
        kind, _, text = key.partition(":")
        identity = json.loads(text)
        if kind == "v":
            if identity not in desired or identity not in live:
                return False
            continue
        ours, theirs = _item(desired, identity), _item(live, identity)
        if _ABSENT in (ours, theirs) or not _same_tree(ours, below, theirs, quantity=False):
            return False
    return True


def _item(items: list[Any], key: Mapping[str, Any]) -> Any:
    """The item that `key` names. A key field with a default may be left out: then the item with
    most of the key's fields matches, if there is only one."""
    matching = [
        item
        for item in items
        if isinstance(item, dict) and all(item.get(k, v) == v for k, v in key.items())
    ]
    return max(matching, key=lambda item: len(item.keys() & key.keys()), default=_ABSENT)


def same_value(desired: Any, live: Any, *, quantity: bool = False) -> bool:
    """Whether `live` is what the server makes of `desired`; `quantity`: both are quantities."""
    if isinstance(desired, dict) and isinstance(live, Mapping):
        # A leaf that is a map is atomic, and owned as a whole; the server may complete it.
        added = live.keys() - desired.keys()
        return all(live[name] == _DEFAULTS.get(name, _ABSENT) for name in added) and all(
            name in live and same_value(value, live[name], quantity=quantity)
            for name, value in desired.items()
        )
    if isinstance(desired, list) and isinstance(live, list):
        return len(desired) == len(live) and all(
            same_value(a, b, quantity=quantity) for a, b in zip(desired, live, strict=True)
        )
    if desired == live and isinstance(desired, bool) == isinstance(live, bool):
        return True
    return quantity and amount(desired) == amount(live) is not None
