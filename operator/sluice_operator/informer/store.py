"""The newest known version of every watched object of one kind, packed to a few hundred bytes.

An object never becomes older here: versions are compared before anything is replaced, so events
may be repeated, late or out of order, and what the operator itself has written may be put here
before the watch tells of it. Knows nothing of where objects come from.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from sluice_contract import labels

from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import POD, Kind, Manifest

REMEMBERED_DELETIONS: Final = 4096
"""An answer to a write of ours may come after the event that the object is gone: by no more than
the requests in flight."""
COMPRESSION: Final = 1
"""The fastest level; objects are mostly repetitions."""

Place = tuple[str, str]
"""Namespace and name."""


class Version(NamedTuple):
    """Which object, and which state of it."""

    uid: str
    number: int
    """Its resourceVersion, which grows with every write to the cluster's store."""


class _Entry(NamedTuple):
    version: Version
    service: str | None
    role: str | None
    packed: bytes


class Objects:
    """The objects of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._entries: dict[Place, _Entry] = {}
        self._by_service: dict[Place, set[str]] = {}
        self._gone: OrderedDict[Place, int] = OrderedDict()
        self._listed: dict[str | None, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, item: Mapping[str, Any], *, listed: bool = False) -> bool:
        """Keeps `item` unless a version as new is there; whether it was kept. `listed`: a listing
        has just shown it, so it is there whatever was known of its place."""
        place, version = place_of(item), version_of(item)
        known = self._entries.get(place)
        if known is not None and version.number <= known.version.number:
            return False
        if known is None and not listed and version.number <= self._emptied_at(place):
            return False
        self._forget(place)
        found = item["metadata"].get("labels") or {}
        service, role = (_shared(found.get(label)) for label in (labels.SERVICE, labels.ROLE))
        self._entries[place] = _Entry(version, service, role, _packed(self.kind, item))
        if service is not None:
            self._by_service.setdefault((place[0], service), set()).add(place[1])
        return True

    def remove(self, item: Mapping[str, Any]) -> None:
        """`item` is gone, or no longer watched, since the version that it has here."""
        place, version = place_of(item), version_of(item)
        known = self._entries.get(place)
        if known is not None and known.version.number <= version.number:
            self._drop(place, version.number)

    def retain(self, namespace: str | None, seen: set[Place], version: int) -> list[Manifest]:
        """Drops what a listing at `version`, of one namespace or of all, has not shown; returns
        what was dropped. What was written after the listing stays."""
        gone = [
            place
            for place, entry in self._entries.items()
            if place not in seen
            and namespace in (None, place[0])
            and entry.version.number <= version
        ]
        dropped = [self._unpacked(place) for place in gone]
        for place in gone:
            self._drop(place, version)
        self._listed[namespace] = version
        return dropped

    def get(self, namespace: str, name: str) -> Manifest | None:
        """The object, or None."""
        place = (namespace, name)
        return self._unpacked(place) if place in self._entries else None

    def select(self, namespace: str, service: str, role: str | None = None) -> tuple[Manifest, ...]:
        """The objects with the labels of a service, and of a role if given, by name."""
        places = (
            (namespace, name) for name in sorted(self._by_service.get((namespace, service), ()))
        )
        return tuple(
            self._unpacked(place)
            for place in places
            if role is None or self._entries[place].role == role
        )

    def versions(self, namespace: str | None) -> Iterator[tuple[Place, Version]]:
        """What is known of one namespace, or of all."""
        for place, entry in self._entries.items():
            if namespace in (None, place[0]):
                yield place, entry.version

    def _emptied_at(self, place: Place) -> int:
        """The last version at which nothing is known to have had this place."""
        listed = (self._listed.get(namespace, 0) for namespace in (None, place[0]))
        return max(self._gone.get(place, 0), *listed)

    def _unpacked(self, place: Place) -> Manifest:
        manifest: Manifest = json.loads(zlib.decompress(self._entries[place].packed))
        return manifest

    def _drop(self, place: Place, version: int) -> None:
        self._forget(place)
        self._gone[place] = version
        self._gone.move_to_end(place)
        if len(self._gone) > REMEMBERED_DELETIONS:
            self._gone.popitem(last=False)

    def _forget(self, place: Place) -> None:
        entry = self._entries.pop(place, None)
        if entry is None or entry.service is None:
            return
        group = (place[0], entry.service)
        self._by_service[group].discard(place[1])
        if not self._by_service[group]:
            del self._by_service[group]


def place_of(item: Mapping[str, Any]) -> Place:
    """Where an object is."""
    return _shared(item["metadata"]["namespace"]), item["metadata"]["name"]


def version_of(item: Mapping[str, Any]) -> Version:
    """Which object it is, and in which state.

    Raises:
        OperatorError: its resourceVersion is no number, so nothing can be said of its age.
    """
    metadata = item["metadata"]
    text = metadata["resourceVersion"]
    if not text.isdecimal():
        place = f"{item.get('kind')} {metadata['namespace']}/{metadata['name']}"
        raise OperatorError(f"{place}: resourceVersion {text!r}: expected a decimal number")
    return Version(metadata["uid"], int(text))


def _packed(kind: Kind, item: Mapping[str, Any]) -> bytes:
    whole = {"apiVersion": kind.api_version, "kind": kind.kind, **item}
    if kind == POD:
        # Nobody applies pods, so nobody asks who owns their fields.
        whole["metadata"] = {**item["metadata"], "managedFields": []}
    return zlib.compress(json.dumps(whole, separators=(",", ":")).encode(), COMPRESSION)


def _shared(text: Any) -> Any:
    """One copy of each text, as most objects have those of others."""
    return sys.intern(text) if isinstance(text, str) else text
