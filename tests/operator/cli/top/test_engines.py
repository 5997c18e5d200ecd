"""What each engine is said to do, and why one drains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_contract.cluster.labels import Role
from sluice_operator.cli.top.engines import EngineRow, pool_rows
from sluice_operator.cli.top.snapshot import RouterLoad, Snapshot
from sluice_operator.kube.kinds import Manifest
from sluice_operator.scaled import MOVED, MOVING, MoveInProgress

from tests.operator.cli.top.recorded import (
    NOW,
    condition,
    draining,
    load,
    pod,
    pool,
    revision,
    service,
    service_load,
    snapshot,
)

NAME = "chat-mixed-1-a"
SOON = "2026-11-28T11:02:13Z"


def row(
    engine: Manifest | None,
    at_router: str | None = "ready",
    item: Manifest | None = None,
    engines: Manifest | None = None,
) -> EngineRow:
    """The only engine, of revision 1; `at_router`: its condition there, None: it is not known."""
    known = engines or pool("chat", "mixed", revision("1", 1, 1, is_current=True))
    rows = () if at_router is None else (load(NAME, "mixed", 0, 1, 100, condition=at_router),)
    seen = Snapshot(
        NOW,
        (),
        (known,),
        () if engine is None else (engine,),
        {("shop", "chat"): RouterLoad("chat-router-a", service_load(*rows))},
    )
    (mixed,) = pool_rows(item or service("chat"), seen)
    (only,) = mixed.engines
    return only


def with_note(item: Manifest, **notes: str) -> Manifest:
    return item | {"metadata": item["metadata"] | {"annotations": notes}}


READY = pod("chat", "mixed", "1-a")
NOT_READY = pod("chat", "mixed", "1-a", is_ready=False)
FORMER = pod("chat", "mixed", "0-a")
RUNS = {"name": "engine", "started": True, "ready": False, "state": {"running": {}}}
LOADING = pod("chat", "mixed", "1-a", is_ready=False, containerStatuses=[RUNS])
EVICTED = pod(
    "chat",
    "mixed",
    "1-a",
    conditions=[condition("DisruptionTarget", "True", "EvictionByEvictionAPI")],
)


@pytest.mark.parametrize(
    ("engine", "at_router", "state", "level"),
    [
        (READY, "ready", "ready", "well"),
        (READY, "failing", "failing at the router", "bad"),
        (READY, "draining", "draining: was told to", "busy"),
        (READY, None, "not yet at the router", "busy"),
        (NOT_READY, None, "starting", "busy"),
        (LOADING, None, "loads its model", "busy"),
        (None, "ready", "ready", "well"),
        (None, "draining", "draining", "busy"),
        (draining(READY, SOON), "draining", "draining, 10 s left: scaled down or deleted", "busy"),
        (draining(READY, "2026-11-28T11:00:00Z"), None, "draining: scaled down or deleted", "busy"),
        (draining(READY, SOON, is_victim=True), None, "draining, 10 s left: scaled down", "busy"),
        (draining(EVICTED, SOON), None, "draining, 10 s left: EvictionByEvictionAPI", "busy"),
    ],
)
def test_what_an_engine_does(
    engine: Manifest | None, at_router: str | None, state: str, level: str
) -> None:
    found = row(engine, at_router)
    assert (found.state, found.level) == (state, level)


def test_an_engine_of_a_former_revision_is_called_so() -> None:
    name = "chat-mixed-0-a"
    current = pool("chat", "mixed", revision("1", 1, 1, is_current=True))
    loads = {("shop", "chat"): RouterLoad("r", service_load(load(name, "mixed", 0, 1, 100)))}
    seen = Snapshot(NOW, (), (current,), (FORMER,), loads)
    states = [engine.state for engine in pool_rows(service("chat"), seen)[0].engines]
    seen = replace(seen, pods=(draining(FORMER, SOON),))
    states += [engine.state for engine in pool_rows(service("chat"), seen)[0].engines]
    assert states == ["ready, former", "draining, 10 s left: former revision"]


def test_why_a_whole_pool_drains() -> None:
    gone = service("chat")
    gone["metadata"]["deletionTimestamp"] = SOON
    assert row(draining(READY, SOON), item=gone).state.endswith(": service deleted")
    removed = pool("chat", "mixed", revision("1", 1, 1, is_current=True))
    removed["metadata"]["deletionTimestamp"] = SOON
    assert row(draining(READY, SOON), engines=removed).state.endswith(": pool removed")


def test_the_reason_of_the_last_scaling_is_that_of_its_victim() -> None:
    item = service("chat", scaling={"reason": "QueueShort"})
    engine = draining(READY, SOON, is_victim=True)
    assert row(engine, item=item).state == "draining, 10 s left: scaled down (QueueShort)"


def test_an_engine_that_moves_between_pools_is_called_so() -> None:
    move = MoveInProgress(
        source=Role.DECODE, engines=1, source_before=2, target_after=2, since=SOON
    )
    target = pool("chat", "mixed", revision("1", 1, 1, is_current=True))
    target = with_note(target, **{MOVING: move.text})
    engine = with_note(READY, **{MOVED: move.text})
    assert row(engine, "draining", engines=target).state == "draining: moves here from pool decode"


def test_engines_are_shown_without_their_pods() -> None:
    known = snapshot()
    blind = Snapshot(NOW, known.services, loads=known.loads)
    counts = [len(pool.engines) for pool in pool_rows(known.services[0], blind)]
    assert counts == [2, 4]
