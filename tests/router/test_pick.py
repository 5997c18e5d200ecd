"""The pick: which engines may be chosen, which are preferred, and that no herd forms."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import HandoverQueues
from sluice_router.engines import (
    Endpoint,
    EngineState,
    Phase,
    ReceivedReport,
    average_load,
    condition,
    load_of,
    reported_load,
)
from sluice_router.pick import Draw, pick, pick_pair

from tests.examples import examples
from tests.router.fakes import FINGERPRINT, load_report

NOW = 1000.0
STALE_SECONDS = 5.0
DRAW = Draw(0.0, 0.0, 0.0)
OTHER = FINGERPRINT.model_copy(update={"page_size_tokens": 32, "kv_dtype": "float32"})


def engine(
    name: str,
    phase: Phase = Phase.READY,
    age: float = 0.0,
    role: Role = Role.MIXED,
    **load: Any,
) -> EngineState:
    load = {"bootstrap_port": 8998 if role is Role.PREFILL else None} | load
    report = ReceivedReport(load_report(role=role, **load), NOW - age, own_inflight=0)
    return EngineState(Endpoint(name, f"http://{name}", role, phase), received=report)


numbers = st.floats(0, 1, exclude_max=True)
draws = st.tuples(*[st.floats(0, 1, exclude_max=True)] * len(Draw._fields)).map(Draw._make)


reports = st.builds(
    ReceivedReport,
    report=st.builds(
        load_report,
        draining=st.booleans(),
        queued_requests=st.integers(0, 50),
        running_requests=st.integers(0, 50),
        max_running_requests=st.integers(0, 64),
        queued_work_seconds=st.floats(0, 10),
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
        role=st.sampled_from(Role),
        phase=st.sampled_from(Phase),
    ),
    inflight=st.integers(0, 20),
    received=st.none() | reports,
    failed_until_seconds=st.floats(NOW - 1, NOW + 1),
    picked_seconds=st.floats(NOW - 10, NOW),
)


@examples(40)
@given(st.lists(states, max_size=8), st.sampled_from(Role), draws, st.data())
def test_only_a_usable_engine_is_chosen_and_one_is_whenever_there_is_one(
    engines: list[EngineState], role: Role, draw: Draw, data: st.DataObject
) -> None:
    keys = [state.key for state in engines]
    tried = data.draw(st.sets(st.sampled_from(keys))) if keys else set()
    usable = [
        e
        for e in engines
        if condition(e, NOW) == "ready" and e.key not in tried and e.endpoint.role is role
    ]
    choice = pick(engines, NOW, draw, stale_seconds=STALE_SECONDS, role=role, tried=tried)
    assert choice.message
    if usable:
        assert choice.engine in usable
        assert choice.reason == "LessLoaded"
    else:
        assert choice.engine is None
        assert choice.reason != "LessLoaded"


@examples(40)
@given(st.lists(states, min_size=1, max_size=8), draws, st.randoms())
def test_the_order_of_the_list_does_not_matter(
    engines: list[EngineState], draw: Draw, random: Random
) -> None:
    shuffled = list(engines)
    random.shuffle(shuffled)
    first = pick(engines, NOW, draw, stale_seconds=STALE_SECONDS)
    assert pick(shuffled, NOW, draw, stale_seconds=STALE_SECONDS).engine == first.engine


def test_the_order_of_the_list_does_not_round_an_average_otherwise() -> None:
    loads = [engine(f"e{n}", queued_work_seconds=0.1 * n) for n in range(4)]
    engines = [*loads, engine("stale", age=STALE_SECONDS + 1)]
    averages = {
        average_load(order, NOW, STALE_SECONDS).load for order in itertools.permutations(engines)
    }
    assert len(averages) == 1


@examples(40)
@given(st.lists(states.filter(lambda s: s.received is not None), min_size=2, max_size=8), draws)
def test_the_most_loaded_of_several_is_never_chosen(engines: list[EngineState], draw: Draw) -> None:
    choice = pick(engines, NOW, draw, stale_seconds=100.0)
    mixed = [e for e in engines if e.endpoint.role is Role.MIXED and condition(e, NOW) == "ready"]
    loads = sorted(reported_load(e, NOW, 100.0) or 0.0 for e in mixed)
    if len(loads) >= 2 and loads[-1] > loads[-2]:
        assert choice.engine is not None
        assert (reported_load(choice.engine, NOW, 100.0) or 0.0) < loads[-1]


@examples(15)
@given(st.integers(6, 32), st.integers(0, 2**32))
def test_routers_with_the_same_reports_form_no_herd(count: int, seed: int) -> None:
    """One engine looks idle to all routers until the next reports: it gets its share, not all."""
    source = Random(seed)
    engines = [engine(f"e{n}", running_requests=10 if n else 0) for n in range(count)]
    picks = 50 * count
    chosen = Counter(
        choice.engine.endpoint.name
        for _ in range(picks)
        for choice in [pick(engines, NOW, draw_from(source), stale_seconds=STALE_SECONDS)]
        if choice.engine is not None
    )
    assert chosen["e0"] < 1.5 * (3 / count) * picks  # drawn with a chance of 3 / count
    assert len(chosen) >= count / 2


@examples(15)
@given(st.integers(2, 16), st.integers(0, 2**32))
def test_one_routers_requests_spread_evenly_between_two_reports(count: int, seed: int) -> None:
    """Its own requests in flight are counted as they are now, not as the reports have them."""
    source = Random(seed)
    engines = {f"e{n}": engine(f"e{n}") for n in range(count)}
    for _ in range(20 * count):
        choice = pick(list(engines.values()), NOW, draw_from(source), stale_seconds=STALE_SECONDS)
        assert choice.engine is not None
        name = choice.engine.endpoint.name
        engines[name] = replace(engines[name], inflight=engines[name].inflight + 1)
    loads = [state.inflight for state in engines.values()]
    assert max(loads) - min(loads) <= 10


def draw_from(source: Random) -> Draw:
    return Draw(*(source.random() for _ in Draw._fields))


def chosen(*engines: EngineState) -> str:
    choice = pick(engines, NOW, DRAW, stale_seconds=STALE_SECONDS)
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


def test_requests_in_the_queues_of_the_hand_over_count_once() -> None:
    """Engines report them as queued or running, too, but those that are held for their reader."""

    def load(**report: Any) -> float | None:
        return reported_load(engine("e", **report), NOW, STALE_SECONDS)

    queues = HandoverQueues(prealloc=2, transfer=3)
    assert load(queues=queues) == 5 / 16
    assert load(queues=queues, queued_requests=2, running_requests=9) == 11 / 16
    queues = HandoverQueues(bootstrap=2, inflight=3)
    assert load(queues=queues, queued_requests=1, running_requests=1) == 5 / 16


def test_an_engine_without_a_page_to_give_is_full() -> None:
    full = engine("full", running_requests=1, kv_pages_free=0)
    assert reported_load(full, NOW, STALE_SECONDS) == 1.0
    assert chosen(full, engine("busy", running_requests=15)) == "busy"
    assert chosen(full, engine("fuller", running_requests=17)) == "full"
    evictable = engine("evictable", running_requests=1, kv_pages_free=0, kv_pages_evictable=1)
    assert chosen(evictable, engine("busy", running_requests=15)) == "evictable"


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
    average = average_load([busy, idle, stale], NOW, STALE_SECONDS)
    assert load_of(stale, NOW, average) == load_of(busy, NOW, average) / 2
    assert chosen(busy, idle, stale) == "idle"


def test_what_was_sent_to_an_engine_without_a_fresh_report_counts() -> None:
    unknown = replace(engine("z"), received=None)
    sent = replace(engine("a"), received=None, inflight=1)
    assert chosen(unknown, sent) == "z", "of equal ones it would be the first by name"


def test_equal_engines_take_turns() -> None:
    first = replace(engine("a"), picked_seconds=NOW - 1)
    second = replace(engine("b"), picked_seconds=NOW - 2)
    assert chosen(first, second) == "b"


def test_why_nobody_is_chosen() -> None:
    def reason(*engines: EngineState, tried: tuple[str, ...] = ()) -> str:
        return pick(engines, NOW, DRAW, stale_seconds=STALE_SECONDS, tried=tried).reason

    ready = engine("a")
    assert reason() == "NoEngines"
    assert reason(ready, tried=(ready.key,)) == "AllTried"
    assert reason(engine("a", Phase.UNREADY)) == "NoneReady"
    assert reason(engine("a", Phase.TERMINATING), engine("b", draining=True)) == "AllDraining"
    assert reason(replace(ready, failed_until_seconds=NOW + 1)) == "AllFailing"


def prefill(name: str, **load: Any) -> EngineState:
    return engine(name, role=Role.PREFILL, **load)


def decode(name: str, **load: Any) -> EngineState:
    return engine(name, role=Role.DECODE, **load)


fingerprints = st.sampled_from([FINGERPRINT, OTHER, None])
pools = st.lists(
    st.builds(
        lambda name, role, fingerprint, version, running: engine(
            name,
            role=role,
            kv_fingerprint=fingerprint,
            handover_version=version,
            running_requests=running,
        ),
        st.uuids().map(str),
        st.sampled_from(Role),
        fingerprints,
        st.sampled_from([None, 1, 2]),
        st.integers(0, 16),
    ),
    max_size=10,
)


@examples(40)
@given(pools, draws, draws)
def test_a_pair_has_both_roles_and_one_fingerprint_and_is_found_whenever_there_is_one(
    engines: list[EngineState], first: Draw, second: Draw
) -> None:
    found = pick_pair(engines, NOW, (first, second), stale_seconds=STALE_SECONDS)
    prints = {
        role: {e.hands_over for e in engines if e.endpoint.role is role} - {None}
        for role in (Role.PREFILL, Role.DECODE)
    }
    if prints[Role.PREFILL] & prints[Role.DECODE]:
        assert found.prefill is not None
        assert found.decode is not None
        assert found.prefill.endpoint.role is Role.PREFILL
        assert found.decode.endpoint.role is Role.DECODE
        assert found.prefill.hands_over == found.decode.hands_over != None  # noqa: E711
    else:
        assert (found.prefill, found.decode) == (None, None)
        assert found.message


def test_an_idle_decode_engine_that_cannot_take_the_pages_is_not_picked() -> None:
    others = [decode("idle", kv_fingerprint=OTHER), decode("old", handover_version=7)]
    busy = decode("busy", running_requests=16)
    found = pick_pair([prefill("p"), *others, busy], NOW, (DRAW, DRAW), stale_seconds=STALE_SECONDS)
    assert found.decode == busy


def test_engines_of_other_numbers_of_gpus_are_a_pair() -> None:
    wider = FINGERPRINT.model_copy(update={"tensor_parallel_size": 4})
    found = pick_pair(
        [prefill("p"), decode("d", kv_fingerprint=wider)],
        NOW,
        (DRAW, DRAW),
        stale_seconds=STALE_SECONDS,
    )
    assert found.decode is not None


def test_a_decode_engine_without_pages_is_left_to_its_queue() -> None:
    waiting = HandoverQueues(prealloc=200)
    crowded = decode("crowded", queues=waiting, kv_pages_free=0)
    free = decode("free", running_requests=2, kv_pages_free=60)
    found = pick_pair([prefill("p"), crowded, free], NOW, (DRAW, DRAW), stale_seconds=STALE_SECONDS)
    assert found.decode == free


def test_without_a_fresh_report_an_engine_counts_as_the_average_of_its_role() -> None:
    """Idle prefill engines do not make a silent decode engine look idle."""
    silent = decode("silent", age=STALE_SECONDS + 1)
    idle = [prefill(f"p{n}") for n in range(8)]
    calm, busy = decode("calm", running_requests=6), decode("busy", running_requests=12)
    busier = decode("busier", running_requests=13)

    def found(draw: Draw) -> EngineState | None:
        engines = [*idle, busy, busier, calm, silent]
        return pick_pair(engines, NOW, (DRAW, draw), stale_seconds=STALE_SECONDS).decode

    assert found(Draw(0.9, 0.0, 0.9)) == calm  # draws silent, busier, calm
    assert found(Draw(0.9, 0.0, 0.0)) == silent  # draws silent, busier, busy


def test_why_there_is_no_pair_names_the_leg_or_what_differs() -> None:
    def found(*engines: EngineState) -> tuple[str, str]:
        pair = pick_pair(engines, NOW, (DRAW, DRAW), stale_seconds=STALE_SECONDS)
        return pair.reason, pair.message

    assert found(prefill("p"), engine("m")) == ("NoEngines", "decode: the service has no engines")
    reason, message = found(prefill("p"), decode("d", kv_fingerprint=OTHER))
    assert reason == "NoneMatches"
    assert "pageSizeTokens: 16 and 32; kvDtype: bfloat16 and float32" in message
    reason, message = found(prefill("p", handover_version=1), decode("d", handover_version=2))
    assert (reason, message) == (
        "NoneMatches",
        "no prefill and decode engine have one version of the hand-over: 1 and 2",
    )
    reason, message = found(prefill("p", kv_fingerprint=None), decode("d"))
    assert (reason, "known yet" in message) == ("NoneMatches", True)
    assert found(prefill("p", bootstrap_port=None), decode("d")) == (
        "NoneReady",
        "prefill: engines without a bootstrap port in a load report: 1",
    )
