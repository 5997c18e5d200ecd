"""A canary's trials by key and minute, on a clock that only the test moves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.config.router import Upstream
from sluice_contract.http_heads import ROUTING_KEY_HEADER
from sluice_contract.wire.load import TrialCounts
from sluice_router import trials
from sluice_router.attempts import Call, Reply, Sender
from sluice_router.canary import goes_to_new
from sluice_router.engines import EngineState, Fleet
from sluice_router.errors import AttemptFailedError, EngineFailedError, RetryReason
from sluice_router.forward import Dispatcher, RequestHistory
from sluice_router.resume import Progress
from sluice_router.targets import Target, TargetChoice
from sluice_router.trials import MINUTE_SECONDS, Trials

from tests.examples import examples
from tests.router import fakes
from tests.router.test_canary import MIXED, call, engine, turns
from tests.router.test_trials import BAD, GOOD, NEW, NONE, SHARES, Clock


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
    ("reasons", "ttft_seconds", "trial"),
    [
        (("handed_back", "handed_back"), 0.5, TrialCounts(trials=1, timed=1)),
        (("handed_back", "handed_back"), 0.3, TrialCounts(trials=1, timed=1, late=1)),
        (("handed_back", "connect"), 0.5, BAD),
        (("connect",), 0.5, BAD),
        (("connect", "handed_back"), 0.5, BAD),
        (("queue_full",), 0.5, NONE),
    ],
)
async def test_a_request_is_one_trial_to_its_first_attempt_that_is_not_handed_back(
    reasons: tuple[RetryReason, ...], ttft_seconds: float, trial: TrialCounts
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
    assert counts.new == trial


TARGETS = {side: Target(engine(side, side)) for side in ("new", "former")}


def attempt(
    counted: Trials,
    key: bytes,
    engines: tuple[EngineState, ...] | None = None,
    shares: dict[Role, CanaryShare] = SHARES,
    *,
    status: int = 200,
) -> None:
    """A first attempt with this key, by default at its own side."""
    side = "new" if goes_to_new(shares, key) else "former"
    target = Target(*engines) if engines else TARGETS[side]
    trial = counted.begin(shares, target, key, 0.0, None)
    if trial is None:
        return
    with trial:
        trial.began(cast(Reply, SimpleNamespace(status=status, streams_events=False)), None)


MOMENTS = st.lists(
    st.tuples(st.integers(0, 5), st.booleans(), st.sampled_from([0.0, 20.0, 60.0, 150.0])),
    max_size=15,
)


@given(moments=MOMENTS)
@examples(100)
def test_a_key_has_no_more_trials_than_minutes(moments: list[tuple[int, bool, float]]) -> None:
    clock = Clock()
    counted = Trials(clock)
    expected: dict[tuple[bool, bytes, float], bool] = {}
    assert counted.counts(SHARES) is not None
    for number, failed, seconds in moments:
        key = str(number).encode()
        attempt(counted, key, status=500 if failed else 200)
        trial = (goes_to_new(SHARES, key), key, clock.now // MINUTE_SECONDS)
        expected[trial] = expected.get(trial, False) or failed
        clock.now += seconds
    clock.now += MINUTE_SECONDS
    counts = counted.counts(SHARES)
    assert counts is not None
    for new, side in ((True, counts.new), (False, counts.old)):
        failures = [failed for (of, *_), failed in expected.items() if of is new]
        assert side == TrialCounts(trials=len(failures), failed=sum(failures))


def test_beyond_the_most_keys_of_a_minute_only_known_ones_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trials, "MAX_KEYS", 2)
    clock = Clock()
    counted = Trials(clock)
    keys = [key for key in map(str.encode, map(str, range(99))) if goes_to_new(SHARES, key)]
    for key in keys[3:5]:
        attempt(counted, key, status=400)
    for key in keys:
        attempt(counted, key)
    attempt(counted, keys[0], status=500)
    attempt(counted, keys[2], status=500)
    clock.now += MINUTE_SECONDS
    counts = counted.counts(SHARES)
    assert counts is not None
    assert counts.new == TrialCounts(trials=2, failed=1)


@pytest.mark.parametrize(("others", "share"), [(29, 10 / 39), (30, None), (10, 0.5), (9, None)])
@pytest.mark.parametrize("minutes", [1, 2])
def test_a_key_with_more_than_a_quarter_of_the_requests_is_heavy(
    others: int, share: float | None, minutes: int
) -> None:
    """Of the new revision's requests in the last minute, if these are not few."""
    clock = Clock()
    counted = Trials(clock)
    keys = [key for key in map(str.encode, map(str, range(99))) if goes_to_new(SHARES, key)]
    for key in [keys[0]] * 10 + keys[1 : others + 1]:
        attempt(counted, key)
    clock.now += minutes * MINUTE_SECONDS
    counts = counted.counts(SHARES)
    assert counts is not None
    assert counts.heavy_share == (share if minutes == 1 else None)


def test_a_pair_is_a_trial_if_both_its_engines_are_of_the_own_side() -> None:
    prefill, decode = Role.PREFILL, Role.DECODE
    shares = {prefill: CanaryShare("p2", "p1", 50), decode: CanaryShare("d1", "d1", 50)}
    key = next(k for k in map(str.encode, map(str, range(99))) if goes_to_new(shares, k))
    clock = Clock()
    counted = Trials(clock)
    for decoding, prefilling in (("d1", "p2"), ("d1", "p1"), ("d0", "p2"), (None, "p2")):
        pair = engine("d", decoding, decode), engine("p", prefilling, prefill)
        attempt(counted, key, pair, shares)
        clock.now += MINUTE_SECONDS
        counts = counted.counts(shares)
        assert counts is not None
        assert (counts.revision, counts.former) == ("d1.p2", "d1.p1")
        assert (counts.new, counts.old) == (GOOD, NONE)


def test_a_pool_that_states_no_share_has_no_trials() -> None:
    shares = {Role.PREFILL: CanaryShare("p2", "p1", 0)}
    counted = Trials(Clock())
    target = Target(engine("d", "d1", Role.DECODE), engine("p", "p1", Role.PREFILL))
    assert counted.begin(shares, target, b"key", 0.0, None) is None


def test_an_attempt_counts_in_the_minute_in_which_it_ends() -> None:
    clock = Clock()
    counted = Trials(clock)
    key = next(k for k in map(str.encode, map(str, range(99))) if goes_to_new(SHARES, k))
    trial = counted.begin(SHARES, TARGETS["new"], key, 0.0, None)
    assert trial is not None
    with trial:
        trial.began(cast(Reply, SimpleNamespace(status=200, streams_events=False)), None)
        clock.now += MINUTE_SECONDS
    for trials_before in (0, 1):
        counts = counted.counts(SHARES)
        assert counts is not None
        assert counts.new.trials == trials_before
        clock.now += MINUTE_SECONDS


def test_an_attempt_that_outlives_its_canary_is_not_counted_to_the_next() -> None:
    clock = Clock()
    counted = Trials(clock)
    key = next(k for k in map(str.encode, map(str, range(99))) if goes_to_new(SHARES, k))
    trial = counted.begin(SHARES, TARGETS["new"], key, 0.0, None)
    assert trial is not None
    next_shares = {MIXED: CanaryShare("newer", "former", 50)}
    first = counted.counts(next_shares)
    with trial:
        trial.began(cast(Reply, SimpleNamespace(status=500, streams_events=False)), None)
    clock.now += MINUTE_SECONDS
    assert first is not None
    assert counted.counts(next_shares) == first
