"""The newest known version of every watched object of one kind, packed to a few hundred bytes.

An object never becomes older here: versions are compared before anything is replaced. So events may
be repeated, late or out of order, and the result of the operator's own write may come before its
event. Only a listing overrules older knowledge: versions go back if the cluster's store was
restored from a backup.
"""

from __future__ import annotations

import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from sluice_contract.cluster import labels

from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import POD, Kind, Manifest

REMEMBERED_DELETIONS: Final = 4096
"""Deletions that are remembered: the answer to our own write may come after the event that the
object is gone. The delay is at most that of the requests in flight."""
COMPRESSION: Final = 1
"""The fastest level; objects are mostly repetitions."""

_DECODER: Final = msgspec.json.Decoder(Manifest)
"""The decoder of objects, made once: making it takes a sixth of the time to unpack an object."""

Place = tuple[str, str]
"""Namespace and name."""


class Version(NamedTuple):
    """Identity and version of an object."""

    uid: str
    number: int
    """resourceVersion of the object, which grows with every write to the cluster's store."""


class _Entry(NamedTuple):
    version: Version
    order: int
    """Order number of the entry's arrival among all of this kind."""
    service: str | None
    role: str | None
    packed: bytes


class _Deletion(NamedTuple):
    number: int
    """Latest version at which the object is known to be absent."""
    order: int


class Objects:
    """The objects of one kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self._entries: dict[Place, _Entry] = {}
        self._by_service: dict[Place, set[str]] = {}
        self._gone: OrderedDict[Place, _Deletion] = OrderedDict()
        self._listed: dict[str | None, int] = {}
        self._order = 0

    def __len__(self) -> int:
        return len(self._entries)

    def mark(self) -> int:
        """Mark to take before a listing is requested; see `put` and `retain`."""
        return self._order

    def was_listed(self, namespace: str) -> bool:
        """Whether everything that there was in a namespace has been put here."""
        return None in self._listed or namespace in self._listed

    def put(self, item: Mapping[str, Any], *, listed_since: int | None = None) -> bool:
        """Keeps `item` unless a version as new is stored; returns whether it was kept.
        `listed_since`: the mark of a listing that shows `item`. A listing is always right about an
        object's presence."""
        place, version = place_of(item), version_of(item)
        if not self._is_news(place, version, item, listed_since):
            return False
        self._keep(place, version, item)
        return True

    def remove(self, item: Mapping[str, Any]) -> None:
        """`item` is gone, or no longer watched, since the version that it has here."""
        place, version = place_of(item), version_of(item)
        entry = self._entries.get(place)
        if entry is not None and entry.version.number <= version.number:
            self._drop(place, version.number)

    def retain(
        self, namespace: str | None, seen: set[Place], version: int, listed_since: int
    ) -> list[Manifest]:
        """Drops objects that a listing at `version`, of one namespace or of all, does not show, and
        returns them. Writes after the listing stay. Deletions noted before its mark are forgotten,
        as the listing's version covers them."""
        gone = [
            place
            for place, entry in self._entries.items()
            if place not in seen
            and namespace in (None, place[0])
            and (entry.order <= listed_since or entry.version.number <= version)
        ]
        dropped = [self._unpacked(place) for place in gone]
        for place in gone:
            self._forget(place)
        for place, deletion in list(self._gone.items()):
            if namespace in (None, place[0]) and deletion.order <= listed_since:
                del self._gone[place]
        if namespace is None:
            self._listed.clear()
        self._listed[namespace] = version
        return dropped

    def has(self, place: Place) -> bool:
        """Whether the object is there."""
        return place in self._entries

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
        """Known objects of one namespace, or of all: their places and versions."""
        for place, entry in self._entries.items():
            if namespace in (None, place[0]):
                yield place, entry.version

    def _emptied_at(self, place: Place) -> int:
        """Latest version at which this place is known to have been empty."""
        listed = (self._listed.get(namespace, 0) for namespace in (None, place[0]))
        deletion = self._gone.get(place)
        return max(0 if deletion is None else deletion.number, *listed)

    def _unpacked(self, place: Place) -> Manifest:
        return _DECODER.decode(zlib.decompress(self._entries[place].packed))

    def _is_news(
        self, place: Place, version: Version, item: Mapping[str, Any], listed_since: int | None
    ) -> bool:
        entry = self._entries.get(place)
        if entry is None:
            return listed_since is not None or version.number > self._emptied_at(place)
        if listed_since is None or entry.order > listed_since:
            return version.number > entry.version.number
        # Before and after a restored backup, one version may stand for two states.
        return entry.version != version or entry.packed != _packed(self.kind, item)

    def _keep(self, place: Place, version: Version, item: Mapping[str, Any]) -> None:
        self._forget(place)
        self._order += 1
        item_labels = item["metadata"].get("labels") or {}
        service, role = (_shared(item_labels.get(label)) for label in (labels.SERVICE, labels.ROLE))
        packed = _packed(self.kind, item)
        self._entries[place] = _Entry(version, self._order, service, role, packed)
        if service is not None:
            self._by_service.setdefault((place[0], service), set()).add(place[1])

    def _drop(self, place: Place, version: int) -> None:
        self._forget(place)
        self._order += 1
        self._gone[place] = _Deletion(version, self._order)
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
    """Namespace and name of an object."""
    return _shared(item["metadata"]["namespace"]), item["metadata"]["name"]


def version_of(item: Mapping[str, Any]) -> Version:
    """Identity and version of `item`.

    Raises:
        OperatorError: as `number_of`; it names the object.
    """
    metadata = item["metadata"]
    try:
        return Version(metadata["uid"], number_of(metadata["resourceVersion"]))
    except OperatorError as error:
        place = f"{item.get('kind')} {metadata['namespace']}/{metadata['name']}"
        raise OperatorError(f"{place}: {error}") from None


def number_of(resource_version: str) -> int:
    """Number by which versions of an object are compared.

    Raises:
        OperatorError: it is no number, so its age is unknown.
    """
    if not resource_version.isdecimal():
        raise OperatorError(f"resourceVersion {resource_version!r}: expected a decimal number")
    return int(resource_version)


def _packed(kind: Kind, item: Mapping[str, Any]) -> bytes:
    whole = {"apiVersion": kind.api_version, "kind": kind.kind, **item}
    if kind == POD:
        # Nobody applies pods, so nobody asks who owns their fields.
        whole["metadata"] = {**item["metadata"], "managedFields": []}
    return zlib.compress(msgspec.json.encode(whole), COMPRESSION)


def _shared(text: Any) -> Any:
    """The text itself, stored only once although many objects have it."""
    return sys.intern(text) if isinstance(text, str) else text
