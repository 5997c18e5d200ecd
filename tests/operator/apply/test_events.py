"""Events: told once, also across restarts, and never in the way."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_operator.apply.events import EventRecorder
from sluice_operator.apply.plan import Event
from sluice_operator.kube.errors import (
    ConflictError,
    LeaseLostError,
    TerminatingNamespaceError,
    UnavailableError,
)
from sluice_operator.kube.kinds import Kind, Manifest

from tests.operator.virtual_time import FakeClock

CHAT: dict[str, Any] = {
    "apiVersion": "serving.sluice.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat", "namespace": "team", "uid": "u1"},
}
READY = Event("Normal", "Ready", "1 of 1 engines is ready")


class Events:
    """An API server that keeps events by name."""

    def __init__(self) -> None:
        self.stored: dict[str, Manifest] = {}
        self.requests = 0
        self.away = False
        self.is_lease_lost = False
        self.is_terminating = False

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        self.requests += 1
        if self.away:
            raise UnavailableError("POST", "away")
        if self.is_lease_lost:
            raise LeaseLostError("the lease is not held")
        if self.is_terminating:
            raise TerminatingNamespaceError("POST", 403, "Forbidden", "being terminated")
        if manifest["metadata"]["name"] in self.stored:
            raise ConflictError("POST", 409, "AlreadyExists", "")
        self.stored[manifest["metadata"]["name"]] = manifest
        return manifest


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def events() -> Events:
    return Events()


async def test_an_event_says_what_about_whom(events: Events, clock: FakeClock) -> None:
    await EventRecorder(events, clock, "pod-a").record(CHAT, READY)
    (event,) = events.stored.values()
    assert event["regarding"]["uid"] == "u1"
    assert event["metadata"]["namespace"] == "team"
    assert (event["type"], event["reason"]) == ("Normal", "Ready")
    assert event["note"] == "1 of 1 engines is ready"
    assert event["eventTime"] == "2026-01-01T00:00:00.000000Z"


async def test_the_same_thing_is_told_once(events: Events, clock: FakeClock) -> None:
    recorder = EventRecorder(events, clock, "pod-a")
    for _ in range(3):
        await recorder.record(CHAT, READY)
    assert events.requests == 1


async def test_another_message_reason_or_object_is_another_event(
    events: Events, clock: FakeClock
) -> None:
    recorder = EventRecorder(events, clock, "pod-a")
    twin = {**CHAT, "metadata": {**CHAT["metadata"], "uid": "u2"}}
    await recorder.record(CHAT, READY)
    await recorder.record(twin, READY)
    await recorder.record(CHAT, Event("Normal", "Ready", "2 of 2"))
    await recorder.record(CHAT, Event("Warning", "Ready", "1 of 1 engines is ready"))
    assert len(events.stored) == 4


async def test_a_restart_adds_no_second_event(events: Events, clock: FakeClock) -> None:
    await EventRecorder(events, clock, "pod-a").record(CHAT, READY)
    restarted = EventRecorder(events, clock, "pod-b")
    await restarted.record(CHAT, READY)
    await restarted.record(CHAT, READY)
    assert len(events.stored) == 1
    assert events.requests == 2


async def test_what_happens_again_much_later_is_told_again(
    events: Events, clock: FakeClock
) -> None:
    recorder = EventRecorder(events, clock, "pod-a")
    await recorder.record(CHAT, READY)
    clock.elapsed_seconds += 601
    await recorder.record(CHAT, READY)
    assert len(events.stored) == 2


async def test_an_outage_stops_nothing_and_the_event_is_told_later(
    events: Events, clock: FakeClock
) -> None:
    recorder = EventRecorder(events, clock, "pod-a")
    events.away = True
    await recorder.record(CHAT, READY)
    events.away = False
    await recorder.record(CHAT, READY)
    assert len(events.stored) == 1


async def test_a_lost_lease_ends_whoever_tells(events: Events, clock: FakeClock) -> None:
    events.is_lease_lost = True
    with pytest.raises(LeaseLostError):
        await EventRecorder(events, clock, "pod-a").record(CHAT, READY)


@pytest.mark.parametrize("kind", ["Normal", "Warning"])
async def test_in_a_namespace_that_goes_nothing_is_told_nor_tried_again(
    events: Events, clock: FakeClock, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    caplog.set_level("INFO")
    recorder = EventRecorder(events, clock, "pod-a")
    events.is_terminating = True
    for _ in range(3):
        await recorder.record(CHAT, Event(kind, "Ready", "1 of 1 engines is ready"))
    assert caplog.records == []
    assert events.requests == 1


async def test_a_long_message_is_cut_to_what_the_api_takes(
    events: Events, clock: FakeClock
) -> None:
    await EventRecorder(events, clock, "p").record(CHAT, Event("Warning", "X", "ä" * 2000))
    (event,) = events.stored.values()
    assert event["note"] == "ä" * 512
