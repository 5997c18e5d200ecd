"""How Kopf is used: raw events only, watches that end with nothing short of an error."""

from __future__ import annotations

import itertools
from collections.abc import Sized

import kopf
from sluice_contract import labels
from sluice_operator.informer.keys import Key
from sluice_operator.informer.watch import (
    CHILDREN,
    EndlessBackoffs,
    event_registry,
    informer_settings,
)
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, POD, SERVICE_CHILDREN


def ignore(key: Key) -> None:
    """A queue that drops everything."""


def resource(kind: str) -> kopf.Resource:
    found = {each.plural: each for each in (*SERVICE_CHILDREN, INFERENCE_SERVICE, POD)}[kind]
    group, _, version = found.api_version.rpartition("/")
    return kopf.Resource(group=group, version=version, plural=found.plural)


def test_no_handler_stores_anything_in_objects() -> None:
    registry = event_registry(ignore)
    assert not list(registry._changing.get_all_handlers())
    assert not list(registry._spawning.get_all_handlers())
    assert not list(registry._webhooks.get_all_handlers())
    assert not list(registry._indexing.get_all_handlers())


def test_both_kinds_and_every_kind_of_child_are_watched() -> None:
    watched = event_registry(ignore)._watching.get_all_selectors()
    expected = {INFERENCE_SERVICE, ENGINE_POOL, POD, *SERVICE_CHILDREN}
    found = {(s.group or "", s.version, s.any_name) for s in watched}
    assert found == {(*_group_version(kind.api_version), kind.plural) for kind in expected}


def _group_version(api_version: str) -> tuple[str, str]:
    group, _, version = api_version.rpartition("/")
    return group, version


def test_children_are_watched_by_label_and_our_own_kinds_whole() -> None:
    selectors = informer_settings().watching.label_selectors
    for kind in CHILDREN:
        assert selectors.collect(resource(kind.plural)) == [labels.SERVICE]
    assert selectors.collect(resource("inferenceservices")) == []
    assert ENGINE_POOL not in CHILDREN


def test_delays_between_attempts_never_run_out_and_begin_anew() -> None:
    delays = EndlessBackoffs(0.25, 5.0)
    first = list(itertools.islice(delays, 100))
    assert first[:4] == [0.25, 0.5, 1.0, 2.0]
    assert first[-1] == 5.0
    assert list(itertools.islice(delays, 100)) == first
    assert not isinstance(delays, Sized), "Kopf counts down what has a length"


def test_kopf_writes_no_events_and_looks_for_no_new_kinds() -> None:
    settings = informer_settings()
    assert settings.posting.enabled is False
    assert settings.scanning.disabled is True
