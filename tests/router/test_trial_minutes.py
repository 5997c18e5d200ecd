"""A canary's trials by key and minute, on a clock that only the test moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import blake2b
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.config.router import Upstream
from sluice_contract.http_heads import ROUTING_KEY_HEADER
from sluice_contract.wire.load import SideCounts, TrialCounts
from sluice_router import trials
from sluice_router.attempts import Call, Reply, Sender
from sluice_router.canary import CanaryKey, goes_to_new
from sluice_router.engines import EngineState, Fleet, Phase
from sluice_router.errors import (
    AttemptFailedError,
    EngineFailedError,
    RetryReason,
    TrialEnd,
    trial_end,
)
from sluice_router.forward import Dispatcher, RequestHistory
from sluice_router.resume import Progress
from sluice_router.targets import Target, TargetChoice
from sluice_router.trials import MINUTE_SECONDS, Trials

from tests.examples import examples
from tests.router import fakes
from tests.router.test_canary import MIXED, call, engine, turns
from tests.router.test_trials import BAD, GOOD, NEW, NONE, SHARES, Clock, added, trial

KEYS = [CanaryKey(str(number).encode()) for number in range(99)]
NEW_KEYS = [key for key in KEYS if goes_to_new(SHARES, key)]


class Fails:
    """A sender whose first attempts fail for these reasons; hand-backs were asked for."""

    def __init__(self, *reasons: RetryReason) -> None:
        self.reasons = list(reasons)
        self.dispatcher: Dispatcher | None = None

    async def send(self, target: Target, call: Call) -> Reply:
        assert self.dispatcher is not None
        for sent in self.dispatcher.unanswered:
            sent.waits_for = MIXED
        if self.reasons:
            raise AttemptFailedError(self.reasons.pop(0), EngineFailedError("fails"))
        reply = SimpleNamespace(
            target=target, status=200, streams_events=True, private=False, close=lambda: None
        )
        return cast(Reply, reply)


@pytest.mark.parametrize(
    ("reasons", "ttft_seconds", "expected"),
    [
        (("handed_back", "handed_back"), 0.5, trial(late=False)),
        (("handed_back", "handed_back"), 0.3, trial(late=True)),
        (("handed_back", "connect"), 0.5, BAD),
        (("connect",), 0.5, BAD),
        (("connect", "handed_back"), 0.5, BAD),
        (("queue_full",), 0.5, NONE),
    ],
)
async def test_a_request_is_one_trial_to_its_first_attempt_that_is_not_handed_back(
    reasons: tuple[RetryReason, ...], ttft_seconds: float, expected: SideCounts
) -> None:
    """Its time begins with its first attempt. Each attempt takes a fifth of a second, and each
    engine is of the own side."""
    clock = Clock()
    fleet, sender = Fleet(clock), Fails(*reasons)
    engines = [engine(name, "new") for name in "abc"]
    fleet.replace_endpoints([each.endpoint for each in engines], SHARES)
    report = fakes.load_report(revision="new", private_calls=True, slo_ttft_seconds=ttft_seconds)
    for each in engines:
        fleet.report(each.key, report, own_inflight=0)

    def choose(engines: Any, *_: Any, **__: Any) -> TargetChoice:
        clock.now += 0.2
        return TargetChoice(Target(engines[0]), "LessLoaded", "")

    upstream = Upstream(wait_for_engine_seconds=0)
    asks = Dispatcher(fleet, cast(Sender, sender), upstream, choose, clock, lambda _: None)
    sender.dispatcher = asks
    progress = Progress(1, streams=True, charge=lambda _: None)
    request = replace(call(turns("hello"), **{ROUTING_KEY_HEADER: NEW}), progress=progress)
    async with asks.open(request, RequestHistory()):
        assert not sender.reasons
    clock.now += MINUTE_SECONDS
    counts = asks.trials.counts(SHARES)
    assert counts is not None
    assert counts.new_counts == expected


def with_slo(state: EngineState) -> EngineState:
    """The engine, with half a second for the first token."""
    assert state.received is not None
    report = state.received.report.model_copy(update={"slo_ttft_seconds": 0.5})
    return replace(state, received=replace(state.received, report=report))


TARGETS = {side: Target(with_slo(engine(side, side))) for side in ("new", "former")}


def attempt(
    counted: Trials,
    key: CanaryKey,
    engines: tuple[EngineState, ...] | None = None,
    shares: dict[Role, CanaryShare] = SHARES,
    *,
    status: int = 200,
    late: bool | None = None,
) -> None:
    """A first attempt with this key, by default at its own side; `late`: its first token, None: the
    answer is not streamed."""
    side = "new" if goes_to_new(shares, key) else "former"
    target = Target(*engines) if engines else TARGETS[side]
    sent_seconds = counted.clock() - (1.0 if late else 0.0)
    trial = counted.begin(shares, target, key, sent_seconds, None)
    if trial is None:
        return
    with trial:
        reply = SimpleNamespace(status=status, streams_events=late is not None)
        trial.began(cast(Reply, reply), None)


def sides(counted: Trials, shares: dict[Role, CanaryShare] = SHARES) -> list[SideCounts]:
    """Counts of the new and the former revision."""
    counts = counted.counts(shares)
    assert counts is not None
    return [counts.new_counts, counts.former_counts]


class Expected:
    """Trials by their definition, one request after the other."""

    def __init__(self) -> None:
        self._counts = Counter[tuple[str, bool, str]]()
        self._seen = set[tuple[str, CanaryKey]]()
        self._bad = set[tuple[str, CanaryKey]]()
        self._trials = set[tuple[str, CanaryKey, bool, float]]()

    def add(
        self, key: CanaryKey, request: dict[str, bool | None], *, new: bool, minute: float
    ) -> None:
        """A key that does not recur is known once it is bad."""
        for signal, bad in request.items():
            if bad is None or (signal, key) in self._bad:
                continue
            if (signal, key, new, minute) not in self._trials:
                self._trials.add((signal, key, new, minute))
                self._counts[signal, new, "trials"] += 1
                self._counts[signal, new, "keys"] += (signal, key) not in self._seen
            if bad:
                self._bad.add((signal, key))
                self._counts[signal, new, "bad"] += 1
            if key.recurs or any(request.values()):
                self._seen.add((signal, key))

    def side(self, new: bool) -> SideCounts:
        names = ("trials", "bad", "keys")
        errors, late = (
            TrialCounts(**{name: self._counts[signal, new, name] for name in names})
            for signal in ("errors", "late")
        )
        return SideCounts(errors=errors, late=late)


MOMENT_KEYS = [CanaryKey(b"%d" % number, recurs=number < 5) for number in range(8)]
MOMENTS = st.lists(
    st.tuples(
        st.sampled_from(MOMENT_KEYS),
        st.sampled_from([200, 500, 401]),
        st.sampled_from([None, False, True]),
        st.sampled_from([0.0, 0.0, 20.0, 60.0, 150.0]),
    ),
    max_size=30,
)


@given(moments=MOMENTS, room=st.sampled_from([2, 99]), percent=st.integers(10, 90))
@examples(100)
def test_a_key_is_bad_once_and_counted_until_then(
    moments: list[tuple[CanaryKey, int, bool | None, float]], room: int, percent: int
) -> None:
    """Also with a table that becomes full."""
    shares = {MIXED: CanaryShare("new", "former", percent)}
    clock, expected, before = Clock(), Expected(), [NONE, NONE]
    counted = Trials(clock, Fleet(clock))
    key = next(key for key in KEYS if goes_to_new(shares, key))
    attempt(counted, key, None, shares, status=401)  # the slo is known, and nothing is counted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "MAX_KEYS", room)
        for key, status, late, seconds in moments:
            attempt(counted, key, None, shares, status=status, late=late)
            failed = None if status == HTTPStatus.UNAUTHORIZED else status != HTTPStatus.OK
            new, minute = goes_to_new(shares, key), clock.now // MINUTE_SECONDS
            expected.add(key, {"errors": failed, "late": late}, new=new, minute=minute)
            clock.now += seconds
            after = sides(counted, shares)
            for now, then in zip(after, before, strict=True):
                counts = added(now, then)
                for each in (counts.errors, counts.late):
                    assert 0 <= each.bad <= each.trials
                    assert 0 <= each.keys <= each.trials
            before = after
    clock.now += MINUTE_SECONDS
    if room > len(MOMENT_KEYS):
        assert sides(counted, shares) == [expected.side(new) for new in (True, False)]


@given(moments=MOMENTS, bounds=st.tuples(st.integers(1, 9), st.integers(1, 9)))
@examples(100)
def test_too_many_keys_are_counted_as_if_only_the_sample_of_them_had_come(
    moments: list[tuple[CanaryKey, int, bool | None, float]], bounds: tuple[int, int]
) -> None:
    """Of both revisions alike, in a minute in which bounds are reached; all keys of a minute or in
    the table, whichever are more."""
    clock = Clock()
    sampled, alone = Trials(clock, Fleet(clock)), Trials(clock, Fleet(clock))
    for counted in (sampled, alone):
        attempt(counted, NEW_KEYS[0], status=401)  # the slo is known, and nothing is counted
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials, "MAX_KEYS", bounds[0])
        patch.setattr(trials, "MAX_MINUTE_KEYS", bounds[1])
        for key, status, late, _ in moments:
            attempt(sampled, key, status=status, late=late)
    counts = sampled.counts(SHARES)
    assert counts is not None
    one_in = round(1 / counts.key_share)
    sample = {key for key in MOMENT_KEYS if not int.from_bytes(key.digest) % one_in}
    for key, status, late, _ in moments:
        if key in sample:
            attempt(alone, key, status=status, late=late)
    clock.now += MINUTE_SECONDS
    assert sides(sampled) == sides(alone)
    assert sum(side.errors.trials for side in sides(sampled)) <= bounds[1]


@pytest.mark.parametrize("recurs", [True, False])
def test_a_burst_beyond_the_bounds_is_counted_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, recurs: bool
) -> None:
    """The busier side is full before the burst, if each has a bound of its own."""
    monkeypatch.setattr(trials, "MAX_MINUTE_KEYS", 64)
    shares = {MIXED: CanaryShare("new", "former", 20)}
    clock = Clock()
    counted = Trials(clock, Fleet(clock))
    keys = [CanaryKey(blake2b(b"%d" % key).digest(), recurs=recurs) for key in range(600)]
    for number, key in enumerate(keys):
        attempt(counted, key, None, shares, status=200 if number < 400 else 500)
    clock.now += MINUTE_SECONDS
    counts = counted.counts(shares)
    assert counts is not None
    assert (counts.key_share, counts.recurs) == (1 / 16, recurs)
    mask = 15
    for side, new in zip(sides(counted, shares), (True, False), strict=True):
        own = [
            number
            for number, key in enumerate(keys)
            if goes_to_new(shares, key) is new and not int.from_bytes(key.digest) & mask
        ]
        bad = sum(number >= 400 for number in own)
        assert side.errors == TrialCounts(trials=len(own), bad=bad, keys=len(own))


def test_a_table_that_is_full_counts_half_of_its_keys_from_the_open_minute_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests without a chat take no room in it until they are bad: else they would fill it."""
    monkeypatch.setattr(trials, "MAX_KEYS", 4)
    clock = Clock()
    counted = Trials(clock, Fleet(clock))
    even, odd = ([key for key in NEW_KEYS if key.digest[-1] % 2 == bit] for bit in (0, 1))
    for key in [*even[:2], *odd[:2]]:
        attempt(counted, key)
    for key in [*even[4:9], *odd[4:9]]:
        attempt(counted, key._replace(recurs=False))
    clock.now += MINUTE_SECONDS
    assert sides(counted)[0].errors == TrialCounts(trials=14, keys=14)
    attempt(counted, odd[0])
    attempt(counted, even[0], status=500)
    attempt(counted, even[2]._replace(recurs=False), status=500)
    attempt(counted, odd[1], status=500)
    clock.now += MINUTE_SECONDS
    assert sides(counted)[0].errors == TrialCounts(trials=16, bad=2, keys=15)


@pytest.mark.parametrize(("others", "share"), [(29, 10 / 39), (30, None), (10, 0.5), (9, None)])
@pytest.mark.parametrize("minutes", [1, 2])
def test_a_key_with_more_than_a_quarter_of_the_requests_is_heavy(
    others: int, share: float | None, minutes: int
) -> None:
    """Of the new revision's requests in the last minute, if these are not few."""
    clock = Clock()
    counted = Trials(clock, Fleet(clock))
    for key in [NEW_KEYS[0]] * 10 + NEW_KEYS[1 : others + 1]:
        attempt(counted, key)
    clock.now += minutes * MINUTE_SECONDS
    counts = counted.counts(SHARES)
    assert counts is not None
    assert counts.heavy_share == (share if minutes == 1 else None)


def test_a_pair_is_a_trial_if_both_its_engines_are_of_the_own_side() -> None:
    prefill, decode = Role.PREFILL, Role.DECODE
    shares = {prefill: CanaryShare("p2", "p1", 50), decode: CanaryShare("d1", "d1", 50)}
    key = next(key for key in KEYS if goes_to_new(shares, key))
    clock = Clock()
    counted = Trials(clock, Fleet(clock))
    for decoding, prefilling in (("d1", "p2"), ("d1", "p1"), ("d0", "p2"), (None, "p2")):
        pair = engine("d", decoding, decode), engine("p", prefilling, prefill)
        attempt(counted, key, pair, shares)
        clock.now += MINUTE_SECONDS
        counts = counted.counts(shares)
        assert counts is not None
        assert (counts.revision, counts.former) == ("d1.p2", "d1.p1")
        assert (counts.new_counts, counts.former_counts) == (GOOD, NONE)


def test_a_pool_that_states_no_share_has_no_trials() -> None:
    shares = {Role.PREFILL: CanaryShare("p2", "p1", 0)}
    counted = Trials(Clock(), Fleet(Clock()))
    target = Target(engine("d", "d1", Role.DECODE), engine("p", "p1", Role.PREFILL))
    assert counted.begin(shares, target, KEYS[0], 0.0, None) is None


def test_an_attempt_counts_in_the_minute_in_which_it_ends() -> None:
    clock = Clock()
    counted = Trials(clock, Fleet(clock))
    trial = counted.begin(SHARES, TARGETS["new"], NEW_KEYS[0], 0.0, None)
    assert trial is not None
    with trial:
        trial.began(cast(Reply, SimpleNamespace(status=200, streams_events=False)), None)
        clock.now += MINUTE_SECONDS
    for trials_before in (0, 1):
        counts = counted.counts(SHARES)
        assert counts is not None
        assert (counts.minutes, counts.new_counts.errors.trials) == (
            trials_before + 1,
            trials_before,
        )
        clock.now += MINUTE_SECONDS


def test_an_attempt_that_outlives_its_canary_is_not_counted_to_the_next() -> None:
    clock = Clock()
    counted = Trials(clock, Fleet(clock))
    trial = counted.begin(SHARES, TARGETS["new"], NEW_KEYS[0], 0.0, None)
    assert trial is not None
    next_shares = {MIXED: CanaryShare("newer", "former", 50)}
    first = counted.counts(next_shares)
    with trial:
        trial.began(cast(Reply, SimpleNamespace(status=500, streams_events=False)), None)
    clock.now += MINUTE_SECONDS
    assert first is not None
    assert counted.counts(next_shares) == first.model_copy(update={"minutes": 1})


ENDS: dict[RetryReason, TrialEnd] = {
    "connect": "failed",
    "broken": "failed",
    "unavailable": "unavailable",
    "queue_full": "none",
    "uncompiled": "failed",
    "out_of_memory": "failed",
    "prefill": "failed",
    "prefill_unavailable": "prefill_unavailable",
    "mismatch": "none",
    "signature": "none",
    "other_key": "failed",
    "slow_client": "none",
    "handed_back": "none",
}


def test_each_reason_of_a_failure_is_a_trial_or_none() -> None:
    assert ENDS.keys() == set(get_args(RetryReason))
    for reason, end in ENDS.items():
        assert trial_end(AttemptFailedError(reason, EngineFailedError("x"))) == end, reason


@pytest.mark.parametrize(
    ("engine_now", "seconds", "expected"),
    [
        ("ready", 1, BAD),
        ("draining", 1, NONE),
        ("unready", 1, NONE),
        ("gone", 1, NONE),
        ("silent", 59, BAD),
        ("silent", 60, NONE),
    ],
)
def test_whether_an_engine_that_took_no_request_drains_is_known_from_its_next_report(
    engine_now: str, seconds: float, expected: SideCounts
) -> None:
    """A silent engine's report comes after a look at the counts."""
    clock = Clock()
    fleet = Fleet(clock)
    counted = Trials(clock, fleet)
    target = Target(engine("d", "d1", Role.DECODE), engine("p", "new", Role.PREFILL))
    shares = {Role.PREFILL: CanaryShare("new", "p1", 99), Role.DECODE: CanaryShare("d1", "d1", 99)}
    key = next(key for key in KEYS if goes_to_new(shares, key))
    endpoints = {each.key: each.endpoint for each in (target.engine, target.prefill) if each}
    fleet.replace_endpoints(endpoints.values(), shares)
    trial = counted.begin(shares, target, key, clock(), None)
    assert trial is not None
    with trial:
        error = EngineFailedError("drains, perhaps")
        trial.began(None, AttemptFailedError("prefill_unavailable", error))
    clock.now += seconds

    def report(*, draining: bool = False) -> None:
        for name in endpoints:  # the decode engine drains: it is not to blame
            is_decode = name == target.engine.key
            report = fakes.load_report(draining=draining or is_decode)
            fleet.report(name, report, own_inflight=0)

    if engine_now in ("ready", "draining"):
        report(draining=engine_now == "draining")
    elif engine_now == "unready":
        away = [replace(each, phase=Phase.UNREADY) for each in endpoints.values()]
        fleet.replace_endpoints(away, shares)
    elif engine_now == "gone":
        fleet.replace_endpoints([], shares)
    elif engine_now == "silent":
        counted.close_minute()
        report()
    counted.close_minute()
    clock.now += MINUTE_SECONDS
    assert sides(counted, shares) == [expected, NONE]
