"""Which engine gets the next request: a pure function of what is known now, and of a random draw.

Power of two choices: two engines are drawn, and the less loaded one is taken. Taking the least
loaded of all would send every router's requests to the same engine until the next load report,
which is up to a second away.

Load is a share: requests in the engine, also in its queues of the hand-over, per request it can run
at once, plus the seconds its queued prompts will take (a second of queued prefill weighs as much as
a full batch). An engine without a page to give counts as full. Requests of this router are counted
as they are now, those of others as the last report has them. An engine without a fresh report is
neither preferred nor avoided: it counts as the average of the others of its role. Knows no clock
and no network.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sluice_contract.kv_fingerprint import KvFingerprint, differences
from sluice_contract.labels import Role

from sluice_router.engines import EngineState, condition

Reason = Literal[
    "LessLoaded", "NoEngines", "NoneReady", "AllDraining", "AllFailing", "AllTried", "NoneMatches"
]


class Draw(NamedTuple):
    """Two random numbers in [0, 1)."""

    first: float
    second: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine to ask, or why there is none."""

    engine: EngineState | None
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class PairChoice:
    """The engines for prefill and for decode, or why there is no such pair."""

    prefill: EngineState | None
    decode: EngineState | None
    reason: Reason
    message: str


def pick(
    engines: Sequence[EngineState],
    now: float,
    draw: Draw,
    *,
    stale_seconds: float,
    role: Role = Role.MIXED,
    tried: Collection[str] = (),
) -> Choice:
    """An engine of that role which takes new requests and is not among the keys in `tried`."""
    of_role = _of_role(engines, role)
    ready = [engine for engine in of_role if condition(engine, now) == "ready"]
    candidates = [engine for engine in ready if engine.key not in tried]
    if not candidates:
        return _no_choice(of_role, ready, now)
    return _less_loaded(candidates, _average_load(ready, now, stale_seconds), now, draw)


def pick_pair(
    engines: Sequence[EngineState],
    now: float,
    draws: tuple[Draw, Draw],
    *,
    stale_seconds: float,
    tried: Collection[str] = (),
) -> PairChoice:
    """A prefill and a decode engine with equal KV fingerprints, both picked as `pick` does.

    An engine whose fingerprint is not known yet gets no request, nor does a prefill engine which
    has not told where decode engines connect.
    """
    legs = []
    for role in (Role.PREFILL, Role.DECODE):
        of_role = _of_role(engines, role)
        ready = [engine for engine in of_role if condition(engine, now) == "ready"]
        usable = [engine for engine in ready if engine.key not in tried]
        if not usable:
            missing = _no_choice(of_role, ready, now)
            return PairChoice(None, None, missing.reason, f"{role}: {missing.message}")
        legs.append(usable)
    prefills, decodes = legs
    shared = {engine.fingerprint for engine in decodes} - {None}
    prefills = [engine for engine in prefills if engine.bootstrap_port is not None]
    if not prefills:
        message = f"prefill: engines without a bootstrap port in a load report: {len(legs[0])}"
        return PairChoice(None, None, "NoneReady", message)
    prefills = [engine for engine in prefills if engine.fingerprint in shared]
    if not prefills:
        return PairChoice(None, None, "NoneMatches", _mismatch(legs[0], decodes))
    average = _average_load(_of_role(engines, Role.PREFILL), now, stale_seconds)
    prefill = _less_loaded(prefills, average, now, draws[0]).engine
    assert prefill is not None
    decodes = [engine for engine in decodes if engine.fingerprint == prefill.fingerprint]
    average = _average_load(_of_role(engines, Role.DECODE), now, stale_seconds)
    decode = _less_loaded(decodes, average, now, draws[1])
    message = f"{prefill.endpoint.name} and {decode.message}"
    return PairChoice(prefill, decode.engine, decode.reason, message)


def reported_load(engine: EngineState, now: float, stale_seconds: float) -> float | None:
    """Load by a fresh report, with our own requests counted live; None without one. At least 1
    without a page to give.

    The report already holds the requests we had there when it was made; only what others sent is
    taken from it, and ours are counted as they are now.
    """
    received = engine.fresh(now, stale_seconds)
    if received is None:
        return None
    report = received.report
    others = max(0, report.requests - received.own_inflight)
    share = (others + engine.inflight) / max(1, report.max_running_requests)
    if not report.has_pages:
        share = max(1.0, share)
    return share + max(0.0, report.queued_work_seconds)


def _of_role(engines: Sequence[EngineState], role: Role) -> list[EngineState]:
    return [engine for engine in engines if engine.endpoint.role is role]


@dataclass(frozen=True, slots=True)
class _Neutral:
    """The average engine of a role: its load, its slots, and how many of our requests it has."""

    load: float
    slots: float
    inflight: float
    stale_seconds: float


def _less_loaded(
    candidates: Sequence[EngineState], neutral: _Neutral, now: float, draw: Draw
) -> Choice:
    """The less loaded of two that are drawn; of equal ones that which was picked longer ago."""

    def order(engine: EngineState) -> tuple[float, float, str]:
        return _load(engine, now, neutral), engine.picked_seconds, engine.key

    drawn = _two_of(sorted(candidates, key=lambda engine: engine.key), draw)
    chosen = min(drawn, key=order)
    load = order(chosen)[0]
    drawn_from = f"the less loaded of {len(drawn)} drawn from {len(candidates)}"
    return Choice(chosen, "LessLoaded", f"{chosen.endpoint.name}: load {load:.2f}, {drawn_from}")


def _two_of(engines: Sequence[EngineState], draw: Draw) -> list[EngineState]:
    """Two different ones, each pair as likely as any other; all of them when they are fewer."""
    count = len(engines)
    if count <= 2:
        return list(engines)
    first = int(draw.first * count)
    second = int(draw.second * (count - 1))
    return [engines[first], engines[second + (second >= first)]]


def _load(engine: EngineState, now: float, neutral: _Neutral) -> float:
    known = reported_load(engine, now, neutral.stale_seconds)
    if known is not None:
        return known
    return neutral.load + max(0.0, engine.inflight - neutral.inflight) / neutral.slots


def _average_load(engines: Sequence[EngineState], now: float, stale_seconds: float) -> _Neutral:
    known = [
        (load, engine)
        for engine in engines
        if (load := reported_load(engine, now, stale_seconds)) is not None
        and condition(engine, now) == "ready"
    ]
    if not known:
        return _Neutral(load=0.0, slots=1.0, inflight=0.0, stale_seconds=stale_seconds)
    count = len(known)
    return _Neutral(
        load=sum(load for load, _ in known) / count,
        slots=sum(_slots(engine) for _, engine in known) / count,
        inflight=sum(engine.inflight for _, engine in known) / count,
        stale_seconds=stale_seconds,
    )


def _slots(engine: EngineState) -> int:
    received = engine.received
    return max(1, received.report.max_running_requests) if received is not None else 1


def _mismatch(prefills: Sequence[EngineState], decodes: Sequence[EngineState]) -> str:
    """What differs between the first two engines that tell."""
    first, second = _first_fingerprint(prefills), _first_fingerprint(decodes)
    if first is None or second is None:
        return "no KV fingerprint known yet of prefill or of decode engines"
    found = "; ".join(differences(first, second))
    return f"no prefill and decode engine have equal KV fingerprints: {found}"


def _first_fingerprint(engines: Sequence[EngineState]) -> KvFingerprint | None:
    return next((engine.fingerprint for engine in engines if engine.fingerprint), None)


def _no_choice(engines: Sequence[EngineState], ready: Sequence[EngineState], now: float) -> Choice:
    if ready:
        return Choice(None, "AllTried", f"usable engines, all tried: {len(ready)}")
    if not engines:
        return Choice(None, "NoEngines", "the service has no engines")
    conditions = [condition(engine, now) for engine in engines]
    if failing := conditions.count("failing"):
        return Choice(None, "AllFailing", f"engines that failed just now: {failing}")
    if unready := conditions.count("unready"):
        return Choice(None, "NoneReady", f"engines not ready yet: {unready}")
    return Choice(None, "AllDraining", f"engines draining: {len(conditions)}")
