"""Which part of an object its owner has applied, and which part others have edited.

Pure. The server's `managedFields` list the owner's fields: an edit removes the field from them,
even a mere deletion. The owner of an EnginePool stores a hash of the names of its fields. While its
owned fields have that hash, the values are its own. A hash of values would not work: a webhook may
alter them, and they would still be the owner's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sluice_contract.cluster.labels import FIELD_MANAGER

from sluice_operator.apply.ssa_diff import FieldSet, body_of, owned_fields
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.metadata import APPLIED_FIELDS, fields_hash


def applied_spec(live: Manifest) -> Manifest | None:
    """The spec as its owner has applied it, without what others have added; None when somebody
    has changed or removed a part of it since."""
    if "managedFields" not in live["metadata"]:
        spec = live["spec"]  # a manifest that is not in a cluster yet
    else:
        owned = (owned_fields(live, FIELD_MANAGER) or {}).get("f:spec")
        spec = _part(owned, live["spec"], atomic_maps=False) if owned else {}
    noted = (live["metadata"].get("annotations") or {}).get(APPLIED_FIELDS)
    return spec if noted == fields_hash(spec) else None


def applied_manifest(live: Manifest) -> Manifest | None:
    """The part of an object that its owner has applied, with its name and kind. Fields that others
    added or took over are left out. None where it owns nothing of the spec: in a restored backup,
    say."""
    if "managedFields" not in live["metadata"]:  # a manifest that is not in a cluster yet
        return _whole_manifest(live)
    owned = owned_fields(live, FIELD_MANAGER) or {}
    if "f:spec" not in owned:
        return None
    head = {"apiVersion": live["apiVersion"], "kind": live["kind"]}
    names = {key: live["metadata"][key] for key in ("name", "namespace")}
    parts = {
        section: _part(owned.get(f"f:{section}") or {}, live[section], atomic_maps=True)
        for section in ("metadata", "spec")
        if f"f:{section}" in owned
    }
    return head | parts | {"metadata": names | parts.get("metadata", {})}


def _whole_manifest(live: Manifest) -> Manifest:
    """A live object as a manifest, with the fields of all managers."""
    kept = ("name", "namespace", "labels", "annotations", "ownerReferences")
    metadata = {key: live["metadata"][key] for key in kept if key in live["metadata"]}
    head = {"apiVersion": live["apiVersion"], "kind": live["kind"]}
    return head | {"metadata": metadata, "spec": live["spec"]}


def edits(live: Manifest) -> tuple[str, ...]:
    """Which fields of the spec others than the owner have set, and as which manager."""
    return tuple(
        f"spec.{key.removeprefix('f:')} by {entry['manager']}"
        for entry in live["metadata"].get("managedFields") or ()
        if entry["manager"] != FIELD_MANAGER
        for key in (entry.get("fieldsV1") or {}).get("f:spec", {})
        if key != "."
    )


class LostField(NamedTuple):
    """A field that its owner has applied and does not own any more."""

    path: str
    """A text for a person: `spec.template.spec.containers[router].image`."""
    value: Any
    """The value that the owner has applied."""
    managers: tuple[str, ...]
    """The managers that own the field now; empty where it was removed."""


def lost_fields(desired: Manifest, live: Manifest, subresource: str = "") -> tuple[LostField, ...]:
    """The fields of `desired` that the operator does not own in `live`: others have written or
    removed them since, or they are new. Empty for an object that the operator never applied."""
    owned = owned_fields(live, FIELD_MANAGER, subresource)
    if not owned:
        return ()
    lost = []
    for steps, value in _unowned(body_of(desired), owned, ()):
        managers = {
            entry["manager"]
            for entry in live["metadata"].get("managedFields") or ()
            if _owns(entry.get("fieldsV1") or {}, steps)
        }
        if any(manager.startswith(FIELD_MANAGER) for manager in managers):
            continue  # another part of the operator has it now
        if managers or value not in ({}, [], None):  # the server does not store empty values
            lost.append(LostField(_path_text(steps), value, tuple(sorted(managers))))
    return tuple(lost)


def _unowned(
    desired: Any, owned: FieldSet, steps: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Keys of `FieldsV1` that lead to values outside `owned`, each with the desired value."""
    if not owned:
        return  # owned as a whole
    below = {key: inner for key, inner in owned.items() if key != "."}
    if isinstance(desired, dict):
        entries = [(f"f:{name}", value) for name, value in desired.items()]
    elif isinstance(desired, list):
        entries = [(_item_key(below, item), item) for item in desired]
    else:
        return
    for key, value in entries:
        if key in below:
            yield from _unowned(value, below[key], (*steps, key))
        else:
            yield (*steps, key), value


def _item_key(owned: FieldSet, item: Any) -> str:
    """The key of a list's item in `owned`; if it is not there, a key that nothing has."""
    for key in owned:
        kind, _, text = key.partition(":")
        identity = json.loads(text)
        if kind == "v" and identity == item:
            return key
        if kind == "k" and isinstance(item, dict) and _has(item, identity):
            return key
    name = item.get("name", "") if isinstance(item, dict) else item
    return f"k:{json.dumps({'name': name})}"


def _has(item: Mapping[str, Any], identity: Mapping[str, Any]) -> bool:
    """Whether `item` has these key fields; key fields with a default may be left out."""
    return all(item.get(name, value) == value for name, value in identity.items())


def _owns(fields: FieldSet, steps: tuple[str, ...]) -> bool:
    for step in steps:
        if step not in fields:
            return False
        fields = fields[step]
    return True


def _path_text(steps: tuple[str, ...]) -> str:
    text = ""
    for step in steps:
        kind, _, name = step.partition(":")
        if kind == "f":
            text += f".{name}"
            continue
        value = json.loads(name)
        shown = value.values() if isinstance(value, dict) else [value]
        text += f"[{','.join(map(str, shown))}]"
    return text.removeprefix(".")


def managers_of(live: Manifest, name: str) -> frozenset[str]:
    """The managers that own a field of the spec, with any kind of write."""
    return frozenset(
        entry["manager"]
        for entry in live["metadata"].get("managedFields") or ()
        if f"f:{name}" in (entry.get("fieldsV1") or {}).get("f:spec", {})
    )


def _part(owned: FieldSet, live: Any, *, atomic_maps: bool) -> Any:
    """The part of `live` that is in `owned`, in the order of `live`. If a map is owned without its
    fields, it was applied empty or, with `atomic_maps`, is owned as a whole."""
    below = {key: inner for key, inner in owned.items() if key != "."}
    if not below:
        return {} if isinstance(live, Mapping) and not atomic_maps else live
    if isinstance(live, Mapping):
        named = ((key.removeprefix("f:"), inner) for key, inner in below.items())
        return {
            name: _part(inner, live[name], atomic_maps=atomic_maps)
            for name, inner in named
            if name in live
        }
    return list(_items(below, live, atomic_maps)) if isinstance(live, list) else live


def _items(owned: FieldSet, live: list[Any], atomic_maps: bool) -> Iterator[Any]:
    names = [(*_named(key), inner) for key, inner in owned.items()]
    for item in live:
        for by_key, identity, inner in names:
            if (identity.items() <= item.items()) if by_key else (identity == item):
                yield _part(inner, item, atomic_maps=atomic_maps)


def _named(key: str) -> tuple[bool, Any]:
    """Whether a list item is identified by its key fields, and the key fields or the value."""
    kind, _, text = key.partition(":")
    return kind == "k", json.loads(text)
