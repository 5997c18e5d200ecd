"""Engines are asked of their adapters until they have those that they should have."""

from __future__ import annotations

from sluice_operator.probes.adapters import (
    AGAIN_SECONDS,
    FAILED_SECONDS,
    AdapterReports,
    EngineAdapters,
)

from tests.operator.probes.test_accelerators import Engines, engine, load
from tests.operator.virtual_time import FakeClock

OLD, NEW = "0ld", "new"
LOADED = EngineAdapters(NEW, frozenset({"sql"}))


def says(digest: str, *names: str, **failed: str) -> bytes:
    adapters = dict.fromkeys(names, "key")
    return load(None, adaptersFile=digest, adapters=adapters, adaptersFailed=failed)


async def test_an_engine_that_has_all_is_not_asked_again_until_they_change() -> None:
    engines, clock = Engines(OSError(), says(OLD), says(NEW, "sql"), says("3", "law")), FakeClock()
    reports, asked = AdapterReports(engines.fetch, clock), [engine("a")]
    for said in (EngineAdapters(), EngineAdapters(OLD), LOADED):
        assert await reports.fetch(asked, NEW) == (said,)
        clock.elapsed_seconds += FAILED_SECONDS
    assert reports.again_seconds(asked, NEW) is None
    assert await reports.fetch(asked, NEW) == (LOADED,)
    assert len(engines.asked) == 3
    assert await reports.fetch(asked, "3") == (EngineAdapters("3", frozenset({"law"})),)


async def test_until_then_it_is_asked_every_few_seconds() -> None:
    engines, clock = Engines(says(OLD), says(NEW, law="no folder"), says(NEW, "law")), FakeClock()
    reports, asked = AdapterReports(engines.fetch, clock), [engine("a")]
    (before,) = await reports.fetch(asked, NEW)
    assert reports.again_seconds(asked, NEW) == AGAIN_SECONDS
    assert await reports.fetch(asked, NEW) == (before,), "not before its time"
    clock.elapsed_seconds += AGAIN_SECONDS
    (failed,) = await reports.fetch(asked, NEW)
    assert failed.failed == {"law": "no folder"}
    assert reports.again_seconds(asked, NEW) == FAILED_SECONDS
    assert await reports.fetch(asked, NEW) == (failed,), "not before its time"
    clock.elapsed_seconds += FAILED_SECONDS
    assert await reports.fetch(asked, NEW) == (EngineAdapters(NEW, frozenset({"law"})),)
    assert reports.again_seconds(asked, NEW) is None


async def test_one_that_does_not_answer_is_not_waited_for_at_every_reconcile() -> None:
    engines, clock = Engines(OSError(), says(NEW, "sql")), FakeClock()
    reports, asked = AdapterReports(engines.fetch, clock), [engine("a")]
    for _ in range(3):
        assert await reports.fetch(asked, NEW) == (EngineAdapters(),)
    assert len(engines.asked) == 1
    assert reports.again_seconds(asked, NEW) == FAILED_SECONDS
    clock.elapsed_seconds += FAILED_SECONDS
    assert await reports.fetch(asked, NEW) == (LOADED,)


async def test_another_container_is_asked_anew() -> None:
    engines = Engines(says(NEW, "sql"), says(NEW))
    reports = AdapterReports(engines.fetch, FakeClock())
    assert await reports.fetch([engine("a")], NEW) == (LOADED,)
    assert await reports.fetch([engine("b")], NEW) == (EngineAdapters(NEW),)
