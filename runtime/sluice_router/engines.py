"""The router's engines: a frozen state of each, its load, and the fleet of them.

`Endpoint` comes from discovery. `EngineState` adds the load report and the router's own experience.
`Fleet` holds the states, replaces one on every change, and wakes requests that wait for a usable
engine. It lives on one event loop.

Load is a share: requests in the engine, also in its queues of the hand-over, per request it can run
at once, plus the seconds its queued prompts will take (a second of queued prefill weighs as much as
a full batch). An engine without a page to give counts as full. Requests of this router are counted
as they are now, those of others as the last report has them. An engine without a fresh report is
neither preferred nor avoided: it counts as the average of the others of its role.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.config.kv_transfer import KvFingerprint
from sluice_contract.wire.load import EngineCondition, LoadReport

FIRST_BREAK_SECONDS = 0.25
LONGEST_BREAK_SECONDS = 8.0
PUBLIC_SECONDS = 60.0
"""How long an engine gets no private call after it refused one."""
Clock = Callable[[], float]
"""Monotonic seconds."""
FULL: Final = 1.0
"""The load from which a request has to wait."""


class Phase(StrEnum):
    """Where an endpoint is in its life, by its EndpointSlice conditions."""

    READY = "ready"
    UNREADY = "unready"
    TERMINATING = "terminating"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One engine's address. A pod that comes back under the same address is another endpoint."""

    name: str
    url: str
    role: Role
    phase: Phase

    @property
    def key(self) -> str:
        """Identity across updates."""
        return f"{self.name}@{self.url}"


@dataclass(frozen=True, slots=True)
class ReceivedReport:
    """A load report, when it arrived, and how many of our requests it counts."""

    report: LoadReport
    received_seconds: float
    own_inflight: int
    kind: str | None = field(init=False)
    """Equal for two engines that can hand over to each other; None: the report has no fingerprint.
    A text, since each pick compares those of all engines."""

    def __post_init__(self) -> None:
        fingerprint = self.report.kv_fingerprint
        version = self.report.handover_version
        kind = (
            None if fingerprint is None else f"{version} {fingerprint.compared.model_dump_json()}"
        )
        object.__setattr__(self, "kind", kind)


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine: its endpoint, its last report, and this router's experience with it."""

    endpoint: Endpoint
    inflight: int = 0
    received: ReceivedReport | None = None
    failures: int = 0
    """Failed attempts since the last answer."""
    failed_until_seconds: float = 0.0
    unreachable: bool = False
    """Whether the last attempt to ask for a load report got no connection."""
    was_asked: bool = False
    """Whether it was asked for its load, and has reported it or answered something else or not in
    time."""
    picked_seconds: float = 0.0
    """When it was last picked; of equal engines the one picked longer ago is next."""
    refused_private_seconds: float | None = None
    """When it last refused a private call, not long ago: its key, or its clock, is another."""

    @property
    def key(self) -> str:
        """The endpoint's."""
        return self.endpoint.key

    @property
    def role(self) -> Role:
        """Role in its last report: an engine may take another role than its pool's."""
        reported = self.received.report.role if self.received is not None else Role.MIXED
        return self.endpoint.role if reported is Role.MIXED else reported

    @property
    def fingerprint(self) -> KvFingerprint | None:
        """KV fingerprint in its last report, however old: it does not change while the engine
        lives."""
        return self.received.report.kv_fingerprint if self.received is not None else None

    @property
    def hands_over(self) -> str | None:
        """Kind of hand-over, equal for two engines that can hand over to each other; None: not
        known yet."""
        return self.received.kind if self.received is not None else None

    @property
    def takes_private_calls(self) -> bool:
        """Whether it takes private calls, so that it can resume answers that another engine began;
        false until a report says so. Always true of prefill engines, which get none."""
        if self.role is Role.PREFILL:
            return True
        takes = self.received is not None and self.received.report.private_calls
        return takes and self.refused_private_seconds is None

    def adapter_key(self, name: str) -> str | None:
        """Key of an adapter, equal for equal adapters; None: its last report has no adapter of this
        name."""
        return self.received.report.adapters.get(name) if self.received is not None else None

    def can_resume(self, identity: str) -> bool:
        """Whether it can take part in an answer that an engine with this identity began."""
        if self.role is Role.PREFILL:
            return True  # a decode engine with this identity takes only pages that fit
        own_identity = self.received.report.answer_identity if self.received else None
        return self.takes_private_calls and own_identity == identity

    @property
    def bootstrap_port(self) -> int | None:
        """Port of a prefill engine at which decode engines connect, by its last report."""
        return self.received.report.bootstrap_port if self.received is not None else None

    def fresh(self, now: float, stale_seconds: float) -> ReceivedReport | None:
        """The report, unless it is older than `stale_seconds`."""
        received = self.received
        if received is None or now - received.received_seconds > stale_seconds:
            return None
        return received


def condition(engine: EngineState, now: float) -> EngineCondition:
    """Whether the engine gets new requests, or why it does not."""
    if engine.endpoint.phase is Phase.TERMINATING:
        return "draining"
    if engine.received is not None and engine.received.report.draining:
        return "draining"
    if engine.endpoint.phase is Phase.UNREADY:
        return "unready"
    failing = engine.unreachable or engine.failed_until_seconds > now
    return "failing" if failing else "ready"


def with_adapter(engines: Sequence[EngineState], name: str) -> Sequence[EngineState]:
    """The engines that serve an adapter. In a service of two pools all of them have the same
    version of it, so that a prefill and a decode engine compute with the same weights; the list is
    empty if no version is in both pools. Where no engine has the adapter, all engines: the name is
    the model's, or an engine answers which names there are."""
    keys = {engine.key: key for engine in engines if (key := engine.adapter_key(name)) is not None}
    if not keys:
        return engines
    pools = [
        {keys.get(engine.key) for engine in engines if engine.role is role}
        for role in {engine.role for engine in engines}
    ]
    if len(pools) == 1:
        return [engine for engine in engines if engine.key in keys]
    alike = Counter(key for key in keys.values() if all(key in pool for pool in pools))
    best = max(alike, key=lambda key: (alike[key], key), default=None)
    return [engine for engine in engines if best is not None and keys.get(engine.key) == best]


def reported_load(engine: EngineState, now: float, stale_seconds: float) -> float | None:
    """Load by a fresh report, with our own requests counted live; None without one. An
    engine without a page to give is full.

    The report includes the requests that we had there when it was made. Only the requests of others
    are taken from it; ours are counted as they are now.
    """
    received = engine.fresh(now, stale_seconds)
    if received is None:
        return None
    report = received.report
    others = max(0, report.figures.requests - received.own_inflight)
    share = (others + engine.inflight) / max(1, report.max_running_requests)
    if not report.figures.kv_pages_available:
        share = max(FULL, share)
    return share + max(0.0, report.figures.queued_work_seconds)


def has_capacity(engine: EngineState) -> bool:
    """Whether it takes one more request, by its last report, our own requests counted live."""
    received = engine.received
    if received is None:
        return False
    report = received.report
    requests = max(0, report.figures.requests - received.own_inflight) + engine.inflight
    queue = report.max_queued_requests
    return report.figures.queued_requests < queue and requests < report.max_running_requests + queue


@dataclass(frozen=True, slots=True)
class Average:
    """The average engine: its load, its slots, and how many of our requests it has."""

    load: float
    slots: float
    inflight: float
    stale_seconds: float


def load_of(engine: EngineState, now: float, average: Average) -> float:
    """Load by a fresh report; without one, the average and what we sent it beyond that."""
    known = reported_load(engine, now, average.stale_seconds)
    if known is not None:
        return known
    return average.load + max(0.0, engine.inflight - average.inflight) / average.slots


def average_load(engines: Sequence[EngineState], now: float, stale_seconds: float) -> Average:
    """Average over the engines that are ready and have a fresh report. When all engines have one,
    the average is not used and not computed. The order of the engines does not matter, not even for
    its rounding."""
    if all(engine.fresh(now, stale_seconds) is not None for engine in engines):
        return Average(load=0.0, slots=1.0, inflight=0.0, stale_seconds=stale_seconds)
    reported = [
        (load, engine)
        for engine in engines
        if (load := reported_load(engine, now, stale_seconds)) is not None
        and condition(engine, now) == "ready"
    ]
    if not reported:
        return Average(load=0.0, slots=1.0, inflight=0.0, stale_seconds=stale_seconds)
    count = len(reported)
    return Average(
        load=math.fsum(load for load, _ in reported) / count,
        slots=math.fsum(_slots(engine) for _, engine in reported) / count,
        inflight=math.fsum(engine.inflight for _, engine in reported) / count,
        stale_seconds=stale_seconds,
    )


def _slots(engine: EngineState) -> int:
    received = engine.received
    return max(1, received.report.max_running_requests) if received is not None else 1


def break_seconds(failures: int) -> float:
    """Seconds in which an engine gets no requests after `failures` in a row: doubling."""
    return min(FIRST_BREAK_SECONDS * 2.0 ** min(failures - 1, 16), LONGEST_BREAK_SECONDS)


class Fleet:
    """Every engine's state, by key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, EngineState] = {}
        self._inflight: dict[str, int] = {}
        self._changed = asyncio.Event()
        self.discovered = False
        """Whether the list of engines was ever read."""
        self.canary: Mapping[Role, CanaryShare] = {}
        """Share of a new revision, by pool, of pools that state one; empty without a canary."""

    def engines(self) -> tuple[EngineState, ...]:
        """All engines, in order of discovery."""
        return tuple(self._states.values())

    def engine(self, key: str) -> EngineState | None:
        """The engine with this key; None: it is not there any more."""
        return self._states.get(key)

    def replace_endpoints(
        self, endpoints: Iterable[Endpoint], canary: Mapping[Role, CanaryShare] | None = None
    ) -> None:
        """Set the list of engines, and the canary; what is known about engines that stay is
        kept."""
        self.canary = canary or {}
        self._states = {
            endpoint.key: replace(self._known(endpoint), endpoint=endpoint)
            for endpoint in endpoints
        }
        self.discovered = True
        self._wake()

    def report(self, key: str, report: LoadReport, own_inflight: int) -> None:
        """Set a load report; `own_inflight`: our requests there when the router asked for it."""
        now = self._clock()
        received = ReceivedReport(report, now, own_inflight)
        if self._update(key, received=received, unreachable=False, was_asked=True):
            refused = self._states[key].refused_private_seconds
            if refused is not None and now - refused >= PUBLIC_SECONDS:
                self._update(key, refused_private_seconds=None)
            self._wake()

    def unreachable(self, key: str) -> None:
        """The engine could not be connected to: no requests until it answers."""
        self._update(key, unreachable=True)

    def reached(self, key: str) -> None:
        """The engine answered, though without a report: it may get requests again."""
        if self._update(key, unreachable=False, was_asked=True):
            self._wake()

    def timed_out(self, key: str) -> None:
        """The engine did not report its load in time, or broke off."""
        if self._update(key, was_asked=True):
            self._wake()

    def failed(self, key: str) -> None:
        """An attempt failed: no requests for a moment."""
        state = self._states.get(key)
        if state is not None:
            failures = state.failures + 1
            until = self._clock() + break_seconds(failures)
            self._update(key, failures=failures, failed_until_seconds=until)

    def refused_private_call(self, key: str) -> None:
        """The engine did not take our signature: no private calls for a while."""
        self._update(key, refused_private_seconds=self._clock())

    def answered(self, key: str) -> None:
        """An attempt was answered: forget earlier failures."""
        state = self._states.get(key)
        if state is not None and state.failures:
            self._update(key, failures=0, failed_until_seconds=0.0)
            self._wake()

    @contextmanager
    def request(self, key: str) -> Iterator[None]:
        """Count one request of the engine, also after the engine has left the list."""
        self._count(key, 1)
        self._update(key, picked_seconds=self._clock())
        try:
            yield
        finally:
            self._count(key, -1)

    async def wait_for_change(self, timeout_seconds: float) -> None:
        """Return when an engine came, left or changed, but no later than the time-out or the
        end of the next break."""
        now = self._clock()
        ends = (s.failed_until_seconds - now for s in self._states.values())
        limit = min((end for end in ends if end > 0), default=timeout_seconds)
        try:
            async with asyncio.timeout(min(limit, timeout_seconds)):
                await self._changed.wait()
        except TimeoutError:
            return

    def _known(self, endpoint: Endpoint) -> EngineState:
        fresh = EngineState(endpoint, inflight=self._inflight.get(endpoint.key, 0))
        return self._states.get(endpoint.key, fresh)

    def _count(self, key: str, step: int) -> None:
        count = self._inflight.get(key, 0) + step
        self._inflight[key] = count
        if not count:
            del self._inflight[key]
        self._update(key, inflight=count)

    def _update(self, key: str, **changes: object) -> bool:
        state = self._states.get(key)
        if state is not None:
            self._states[key] = replace(state, **changes)  # type: ignore[arg-type]
        return state is not None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
