"""The store never goes back, whatever order events, answers and listings come in; unless the
cluster does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sluice_contract.cluster import labels
from sluice_operator.informer.store import REMEMBERED_DELETIONS, Objects
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import DEPLOYMENT, POD, Manifest

from tests.examples import examples

NAMES = ("a", "b")
NAMESPACES = ("x", "y")
SERVICES = ("chat", "code")


def item(name: str, version: int, uid: str = "u", **parts: Any) -> Manifest:
    found = {labels.SERVICE: parts.get("service", "chat"), labels.ROLE: parts.get("role", "mixed")}
    return {
        "metadata": {
            "name": name,
            "namespace": parts.get("namespace", "x"),
            "uid": uid,
            "resourceVersion": str(version),
            "labels": found,
        },
        "spec": {"replicas": version},
    }


@dataclass
class Server:
    """What an API server has, and what it has told: events of each object in their order, one
    stream of them as in a watch, and answers to writes, which come whenever they come."""

    version: int = 0
    objects: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    events: list[tuple[str, Manifest]] = field(default_factory=list)
    answers: list[Manifest] = field(default_factory=list)

    def write(self, namespace: str, name: str, service: str) -> None:
        self.version += 1
        known = self.objects.get((namespace, name))
        uid = known["metadata"]["uid"] if known else f"u{self.version}"
        written = item(name, self.version, uid, namespace=namespace, service=service)
        self.objects[namespace, name] = written
        self.events.append(("MODIFIED" if known else "ADDED", written))
        self.answers.append(written)

    def delete(self, namespace: str, name: str) -> None:
        self.version += 1
        gone = self.objects.pop((namespace, name))
        last = {**gone, "metadata": {**gone["metadata"], "resourceVersion": str(self.version)}}
        self.events.append(("DELETED", last))


class StoreMachine(RuleBasedStateMachine):
    """A watch that is late and may be broken off, answers that come before or after it, listings
    in the middle of it all."""

    def __init__(self) -> None:
        super().__init__()
        self.server = Server()
        self.store = Objects(DEPLOYMENT)
        self.seen: dict[str, int] = {}
        self.listing: tuple[dict[tuple[str, str], Manifest], int, int] | None = None
        self.backup: tuple[dict[tuple[str, str], Manifest], int] = {}, 0

    @rule(
        namespace=st.sampled_from(NAMESPACES),
        name=st.sampled_from(NAMES),
        service=st.sampled_from(SERVICES),
    )
    def somebody_writes(self, namespace: str, name: str, service: str) -> None:
        self.server.write(namespace, name, service)

    @precondition(lambda self: self.server.objects)
    @rule(data=st.data())
    def somebody_deletes(self, data: st.DataObject) -> None:
        self.server.delete(*data.draw(st.sampled_from(sorted(self.server.objects))))

    @precondition(lambda self: self.server.events and self.listing is None)
    @rule()
    def an_event_comes(self) -> None:
        kind, changed = self.server.events.pop(0)
        self.take(kind, changed)

    @precondition(lambda self: self.server.answers)
    @rule(data=st.data())
    def the_answer_to_a_write_comes(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.server.answers) - 1))
        self.store.put(self.server.answers.pop(place))

    @rule()
    def the_watch_is_lost_and_everything_is_listed(self) -> None:
        """As of now; what happens while the listing is on its way is told by the next watch."""
        self.server.events.clear()
        self.listing = dict(self.server.objects), self.server.version, self.store.mark()

    @rule()
    def a_backup_is_made(self) -> None:
        self.backup = dict(self.server.objects), self.server.version

    @precondition(lambda self: self.listing is None and self.server.version > self.backup[1])
    @rule(data=st.data(), writes=st.integers(0, 3))
    def the_backup_is_restored(self, data: st.DataObject, writes: int) -> None:
        """Then versions are given once more, to other states; nobody answers writes from before."""
        self.server = Server(self.backup[1], dict(self.backup[0]))
        for _ in range(writes):
            name, service = (data.draw(st.sampled_from(each)) for each in (NAMES, SERVICES))
            self.server.write("x", name, service)
        self.the_watch_is_lost_and_everything_is_listed()
        self.seen.clear()
        self.the_listing_comes()
        self.the_watch_catches_up()

    @precondition(lambda self: self.listing)
    @rule()
    def the_listing_comes(self) -> None:
        assert self.listing is not None
        listed, version, mark = self.listing
        self.listing = None
        for changed in listed.values():
            self.store.put(changed, listed_since=mark)
        self.store.retain(None, set(listed), version, mark)

    @rule(namespace=st.sampled_from(NAMESPACES))
    def one_namespace_is_listed(self, namespace: str) -> None:
        if self.listing is not None:
            return
        there = {p: each for p, each in self.server.objects.items() if p[0] == namespace}
        mark = self.store.mark()
        for changed in there.values():
            self.store.put(changed, listed_since=mark)
        self.store.retain(namespace, set(there), self.server.version, mark)
        assert {p: each for p, each in self.held().items() if p[0] == namespace} == there

    @rule()
    def the_watch_catches_up(self) -> None:
        if self.listing is not None:
            self.the_listing_comes()
        while self.server.events:
            self.take(*self.server.events.pop(0))
        assert self.held() == self.server.objects

    @invariant()
    def no_object_becomes_older(self) -> None:
        for held in self.held().values():
            uid, version = held["metadata"]["uid"], int(held["metadata"]["resourceVersion"])
            assert version >= self.seen.get(uid, 0)
            self.seen[uid] = version

    @invariant()
    def what_was_known_and_is_still_so_is_not_forgotten(self) -> None:
        held = self.held()
        for place, item in self.server.objects.items():
            metadata = item["metadata"]
            if self.seen.get(metadata["uid"]) == int(metadata["resourceVersion"]):
                assert held.get(place) == item

    @invariant()
    def the_index_has_what_the_store_has(self) -> None:
        held = self.held()
        for namespace in NAMESPACES:
            for service in SERVICES:
                names = [each["metadata"]["name"] for each in self.store.select(namespace, service)]
                assert names == sorted(
                    name
                    for (where, name), each in held.items()
                    if where == namespace and each["metadata"]["labels"][labels.SERVICE] == service
                )

    def take(self, kind: str, changed: Mapping[str, Any]) -> None:
        if kind == "DELETED":
            self.store.remove(changed)
        else:
            self.store.put(changed)

    def held(self) -> dict[tuple[str, str], Manifest]:
        found = {}
        for (namespace, name), _ in self.store.versions(None):
            held = self.store.get(namespace, name)
            assert held is not None
            assert (held.pop("apiVersion"), held.pop("kind")) == ("apps/v1", "Deployment")
            found[namespace, name] = held
        return found


TestStore = StoreMachine.TestCase
TestStore.settings = examples(30, stateful_step_count=40)


def test_an_answer_that_comes_after_the_deletion_brings_nothing_back() -> None:
    store = Objects(DEPLOYMENT)
    store.put(item("a", 1))
    store.remove(item("a", 3))
    assert not store.put(item("a", 2))
    assert store.put(item("a", 4, "another"))


def test_a_listing_is_the_truth_whatever_was_known_before_it_and_no_more_than_that() -> None:
    """As after a backup was restored: versions that were given before are given again."""
    store = Objects(DEPLOYMENT)
    for name, version in {"same": 5, "older": 8, "twice": 7, "not there": 9, "deleted": 4}.items():
        store.put(item(name, version, service="chat"))
    store.remove(item("deleted", 9))
    mark = store.mark()
    store.put(item("written since", 11))
    listed = [item("same", 5), item("older", 3), item("twice", 7, service="code")]
    kept = [store.put(each, listed_since=mark) for each in listed]
    assert kept == [False, True, True]
    assert not store.put(item("written since", 6), listed_since=mark)
    seen = {("x", each["metadata"]["name"]) for each in listed}
    (gone,) = store.retain(None, seen, 7, mark)
    assert gone["metadata"]["name"] == "not there"
    assert [each["metadata"]["name"] for each in store.select("x", "code")] == ["twice"]
    assert store.put(item("deleted", 8)), "another history: nobody has deleted it in this one"
    assert not store.put(item("late", 7)), "an answer from before the listing"


def test_deletions_are_remembered_within_bounds() -> None:
    store = Objects(DEPLOYMENT)
    for number in range(REMEMBERED_DELETIONS + 10):
        store.put(item(f"a{number}", 2 * number + 1, f"u{number}"))
        store.remove(item(f"a{number}", 2 * number + 2, f"u{number}"))
    assert len(store) == 0
    assert len(store._gone) == REMEMBERED_DELETIONS


def test_a_role_is_selected_by_its_label() -> None:
    store = Objects(POD)
    store.put(item("a", 1, role="mixed"))
    store.put(item("b", 2, role="router"))
    assert [each["metadata"]["name"] for each in store.select("x", "chat", "router")] == ["b"]
    assert store.select("x", "code") == ()


def test_pods_are_kept_without_the_owners_of_their_fields() -> None:
    store = Objects(POD)
    pod = item("a", 1)
    pod["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    store.put(pod)
    held = store.get("x", "a")
    assert held is not None
    assert held["metadata"]["managedFields"] == []
    assert held["spec"] == pod["spec"]


def test_a_version_that_is_no_number_is_refused() -> None:
    odd = item("a", 1)
    odd["metadata"]["resourceVersion"] = "1-2"
    with pytest.raises(OperatorError, match="x/a: resourceVersion '1-2': expected a decimal"):
        Objects(DEPLOYMENT).put(odd)
