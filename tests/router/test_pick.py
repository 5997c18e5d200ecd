"""The pick: who may be chosen, who is preferred, and what a missing report means."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from sluice_contract.labels import Role
from sluice_router.engines import Endpoint, EngineState, Phase, ReceivedReport, condition
from sluice_router.pick import pick, reported_load

from tests.router.fakes import load_report

NOW = 1000.0
STALE_SECONDS = 5.0


def engine(name: str, phase: Phase = Phase.READY, age: float = 0.0, **load: object) -> EngineState:
    report = ReceivedReport(load_report(**load), NOW - age, own_inflight=0)
    return EngineState(Endpoint(name, f"http://{name}", Role.MIXED, phase), received=report)


reports = st.builds(
    ReceivedReport,
    report=st.builds(
        load_report,
        draining=st.booleans(),
        queued_requests=st.integers(0, 50),
        running_requests=st.integers(0, 50),
        max_running_requests=st.integers(0, 64),
        queued_work_seconds=st.one_of(st.floats(0, 10), st.just(float("nan"))),
    ),
    received_seconds=st.floats(NOW - 10, NOW),
    own_inflight=st.integers(0, 20),
)
states = st.builds(
    EngineState,
    endpoint=st.builds(
        Endpoint,
        name=st.uuids().map(str),
        url=st.just("http://e"),
        role=st.just(Role.MIXED),
        phase=st.sampled_from(Phase),
    ),
    inflight=st.integers(0, 20),
    received=st.none() | reports,
    failed_until_seconds=st.floats(NOW - 1, NOW + 1),
    picked_seconds=st.floats(NOW - 10, NOW),
)


@settings(deadline=None)
@given(st.lists(states, max_size=8), st.data())
def test_only_a_usable_engine_is_chosen_and_one_is_whenever_there_is_one(
    engines: list[EngineState], data: st.DataObject
) -> None:
    keys = [state.key for state in engines]
    tried = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    usable = [e for e in engines if condition(e, NOW) == "ready" and e.key not in tried]
    choice = pick(engines, NOW, stale_seconds=STALE_SECONDS, tried=tried)
    assert choice.message
    if usable:
        assert choice.engine in usable
        assert choice.reason == "LeastLoaded"
    else:
        assert choice.engine is None
        assert choice.reason != "LeastLoaded"


@settings(deadline=None)
@given(st.lists(states, min_size=1, max_size=8), st.randoms())
def test_the_order_of_the_list_does_not_matter(engines: list[EngineState], random: object) -> None:
    shuffled = list(engines)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    first = pick(engines, NOW, stale_seconds=STALE_SECONDS)
    assert pick(shuffled, NOW, stale_seconds=STALE_SECONDS).engine == first.engine


@settings(deadline=None)
@given(st.lists(states.filter(lambda s: s.received is not None), min_size=1, max_size=8))
def test_among_fresh_reports_the_least_load_wins(engines: list[EngineState]) -> None:
    choice = pick(engines, NOW, stale_seconds=100.0)
    if choice.engine is not None:
        loads = [
            reported_load(e, NOW, 100.0) or 0.0 for e in engines if condition(e, NOW) == "ready"
        ]
        assert (reported_load(choice.engine, NOW, 100.0) or 0.0) == min(loads)


def chosen(*engines: EngineState) -> str:
    choice = pick(engines, NOW, stale_seconds=STALE_SECONDS)
    assert choice.engine is not None
    return choice.engine.endpoint.name


def test_a_queue_repels() -> None:
    assert chosen(engine("a", queued_requests=2), engine("b", running_requests=1)) == "b"


def test_slots_count_not_requests() -> None:
    small = engine("small", running_requests=4, max_running_requests=8)
    large = engine("large", running_requests=8, max_running_requests=256)
    assert chosen(small, large) == "large"


def test_a_long_prompt_in_the_queue_repels_more_than_short_answers() -> None:
    assert chosen(engine("a", queued_work_seconds=2.0), engine("b", running_requests=15)) == "b"


def test_requests_sent_since_the_report_count() -> None:
    assert chosen(replace(engine("a"), inflight=3), engine("b", running_requests=2)) == "b"


def test_our_own_requests_in_the_report_are_not_counted_twice() -> None:
    report = ReceivedReport(load_report(running_requests=3), NOW, own_inflight=3)
    ours = replace(engine("a"), inflight=3, received=report)
    assert chosen(ours, engine("b", running_requests=4)) == "a"


def test_requests_that_ended_since_the_report_no_longer_count() -> None:
    report = ReceivedReport(load_report(running_requests=3), NOW, own_inflight=3)
    ours = replace(engine("a"), inflight=0, received=report)
    assert chosen(ours, engine("b", running_requests=1)) == "a"


def test_without_a_fresh_report_an_engine_counts_as_average() -> None:
    stale = engine("stale", age=STALE_SECONDS + 1)
    busy, idle = engine("busy", running_requests=10), engine("idle")
    assert chosen(stale, busy, idle) == "idle"
    assert chosen(stale, busy, engine("busier", running_requests=12)) == "busy"
    assert chosen(stale, engine("busy", running_requests=14)) in ("stale", "busy")
    unknown = replace(stale, received=None)
    assert chosen(unknown, replace(unknown, endpoint=engine("x").endpoint, inflight=1)) == "stale"


def test_equal_engines_take_turns() -> None:
    first = replace(engine("a"), picked_seconds=NOW - 1)
    second = replace(engine("b"), picked_seconds=NOW - 2)
    assert chosen(first, second) == "b"


def test_why_nobody_is_chosen() -> None:
    def reason(*engines: EngineState, tried: tuple[str, ...] = ()) -> str:
        return pick(engines, NOW, stale_seconds=STALE_SECONDS, tried=tried).reason

    ready = engine("a")
    assert reason() == "NoEngines"
    assert reason(ready, tried=(ready.key,)) == "AllTried"
    assert reason(engine("a", Phase.UNREADY)) == "NoneReady"
    assert reason(engine("a", Phase.TERMINATING), engine("b", draining=True)) == "AllDraining"
    assert reason(replace(ready, failed_until_seconds=NOW + 1)) == "AllFailing"
