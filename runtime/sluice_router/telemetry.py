"""Reports about requests: Prometheus metrics, made from the contract's table
(`sluice_contract.cluster.metrics` has names and buckets), and spans: one for each request, and in
it one for each engine or pair that is asked.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal, NamedTuple, get_args

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from sluice_contract.cluster import metrics
from sluice_contract.cluster.labels import Role
from sluice_contract.http_errors import MESSAGES_PATH, status_for
from sluice_contract.version import VERSION
from sluice_contract.wire.load import EngineCondition, Ledger
from sluice_contract.wire.spans import (
    Attributes,
    AttributeValue,
    Record,
    Span,
    child_of,
    is_sampled,
    new_traceparent,
    trace_id,
    unsampled,
)
from yarl import URL

from sluice_router.errors import RetryReason

CONTENT_TYPE = CONTENT_TYPE_LATEST
Outcome = Literal["complete", "cut", "client_gone"]
"""How an answer ended: whole (also as an error), broken off after its head was sent, or by the
client, who left or did not read."""
COMPLETION_ROUTES: Final = (
    "/v1/completions", "/v1/chat/completions", "/v1/responses", MESSAGES_PATH,
)  # fmt: skip
FAILURES: Final[tuple[tuple[str, Outcome], ...]] = (
    ("200", "cut"), ("429", "complete"), ("500", "complete"), ("502", "complete"),
    ("503", "complete"), ("504", "complete"),
)  # fmt: skip
"""Status and outcome of requests to `COMPLETION_ROUTES` on which alerts are built. These counters
start at 0, so that their first count is an increase. Anthropic's clients get another status."""
Fate = Literal["answered", "resumed", "refused", "abandoned", "lost"]
"""Fate of a request for a completion: the fields of `Ledger`."""
_LOST: Final = frozenset({500, 502, 504})
CONDITIONS: tuple[EngineCondition, ...] = ("ready", "unready", "draining", "failing")
REQUEST: Final = "sluice.request"
ATTEMPT: Final = "sluice.attempt"


class RouterLoad(NamedTuple):
    """Requests that a router serves now, and bytes that it holds."""

    requests: int
    waiting_requests: int
    """Requests that wait until an engine is usable."""
    buffered_bytes: int


class RouterCounts(NamedTuple):
    """Counts since the router's start that are kept elsewhere."""

    picks: Mapping[str, int]
    """Picks by their reason."""
    trials: Mapping[tuple[str, str], int]
    """Trials of canaries, by side and outcome."""


def fate_of(status: int, outcome: Outcome, error_status: int | None, *, resumed: bool) -> Fate:
    """Fate of a request for a completion that ended so. `error_status`: of the error in its stream
    or in its place; `resumed`: a second engine answered."""
    if outcome == "client_gone":
        return "abandoned"
    if outcome == "cut":  # by the request itself, as with a grammar that is too slow, or by us
        return "refused" if error_status is not None and error_status < 500 else "lost"
    if status in _LOST:
        return "lost"
    if status >= 400:
        return "refused"
    return "resumed" if resumed else "answered"


class Telemetry:
    """All collectors of one router."""

    def __init__(self, roles: Collection[Role]) -> None:
        """`roles`: of the service's pools."""
        self._roles = roles
        self._counted: Tally[object] = Tally()
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        table = {metric.name: metric for metric in metrics.ROUTER}
        self._gauge(table["sluice_router_info"]).labels(VERSION).set(1)
        self._requests = self._counter(table["sluice_router_requests_total"])
        self._ledger = self._counter(table["sluice_router_ledger_total"])
        self._fates: Tally[Fate] = Tally()
        self._open = 0
        self._seconds = self._histogram(table["sluice_router_request_seconds"])
        self._first_byte = self._histogram(table["sluice_router_first_byte_seconds"])
        self._retries = self._counter(table["sluice_router_retries_total"])
        self._resumed = self._counter(table["sluice_router_streams_resumed_total"])
        self._resume_failures = self._counter(table["sluice_router_resume_failures_total"])
        self._resumes_forgone = self._counter(table["sluice_router_resumes_forgone_total"])
        self._engines = self._gauge(table["sluice_router_engines"])
        for route, (status, outcome) in product(COMPLETION_ROUTES, FAILURES):
            self._requests.labels(route, str(status_for(route, int(status))), outcome)
        for fate in get_args(Fate):
            self._ledger.labels(fate)
        for answer in ("stream", "whole"):
            self._first_byte.labels(answer)
        for reason in get_args(RetryReason):
            self._retries.labels(reason)
            self._resumed.labels(reason)
        self._picks = self._counter(table["sluice_router_picks_total"])
        self._trials = self._counter(table["sluice_router_canary_trials_total"])
        self._waiting = self._gauge(table["sluice_router_waiting_requests"])
        self._inflight = self._gauge(table["sluice_router_inflight_requests"])
        self._buffered = self._gauge(table["sluice_router_buffered_bytes"])

    def request(self, route: str, status: int, outcome: Outcome, seconds: float) -> None:
        """A request ended."""
        self._requests.labels(route, str(status), outcome).inc()
        self._seconds.labels(route).observe(seconds)

    def completion_began(self) -> None:
        """A request for a completion came; `completion_ended` follows in every case."""
        self._open += 1

    def completion_ended(self, fate: Fate) -> None:
        """Counts the fate of a request for a completion."""
        self._open -= 1
        self._fates[fate] += 1
        self._ledger.labels(fate).inc()

    def ledger(self) -> Ledger:
        """Ledger of all requests for completions since the start."""
        counts = {fate: self._fates[fate] for fate in get_args(Fate)}
        return Ledger(open=self._open, **counts)

    def first_byte(self, seconds: float, *, streams: bool) -> None:
        """An engine's first byte came: of a stream with its first token."""
        self._first_byte.labels("stream" if streams else "whole").observe(seconds)

    def retry(self, reason: str) -> None:
        """A request is offered to another engine."""
        self._retries.labels(reason).inc()

    def resumed(self, reason: str) -> None:
        """Counts an answer that another engine continues after its engine broke off."""
        self._resumed.labels(reason).inc()

    def resume_failure(self) -> None:
        """No other engine could finish an answer after its engine broke off."""
        self._resume_failures.inc()

    def resume_forgone(self) -> None:
        """Counts an answer whose state for a resume was dropped for want of memory."""
        self._resumes_forgone.inc()

    def render(
        self,
        engines: Iterable[tuple[Role, EngineCondition]],
        counts: RouterCounts,
        load: RouterLoad,
    ) -> bytes:
        """The exposition, with gauges as of now."""
        tally = Tally(engines)
        for role, condition in product(self._roles, CONDITIONS):
            self._engines.labels(role, condition).set(tally[role, condition])
        for reason, count in counts.picks.items():
            self._raise_to(self._picks.labels(reason), reason, count)
        for trial, count in counts.trials.items():
            self._raise_to(self._trials.labels(*trial), trial, count)
        self._waiting.set(load.waiting_requests)
        self._inflight.set(load.requests)
        self._buffered.set(load.buffered_bytes)
        return generate_latest(self._registry)

    def _raise_to(self, counter: Counter, key: object, count: int) -> None:
        counter.inc(count - self._counted[key])
        self._counted[key] = count

    def _counter(self, metric: metrics.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self._registry)

    def _gauge(self, metric: metrics.Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self._registry)

    def _histogram(self, metric: metrics.Metric) -> Histogram:
        return Histogram(
            metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self._registry
        )


@dataclass(frozen=True, slots=True)
class Traced:
    """A request's own traceparent, and its client's if that sent one."""

    own: str
    parent: str | None


@dataclass(frozen=True)
class Attempt:
    """The span of one attempt at an engine or a pair. `end` is called once."""

    traceparent: str
    """Traceparent for the engine: its spans are parts of this one."""
    parent: str
    start_seconds: float
    target: str
    url: URL
    spans: RouterSpans

    def end(
        self, status: int | None, error: str | None = None, error_type: str | None = None
    ) -> None:
        """The attempt is over. `status` is None if there was no answer; `error` says why, and
        `error_type` in a stable word: the status if it is left out."""
        attributes: dict[str, AttributeValue] = {"sluice.engine": self.target}
        if self.url.host is not None and self.url.port is not None:
            attributes |= {"server.address": self.url.host, "server.port": self.url.port}
        if status is not None:
            attributes["http.response.status_code"] = status
            if status >= 400 and error_type is None:
                error_type = str(status)
        if error_type is not None:
            attributes["error.type"] = error_type
        now = self.spans.clock()
        self.spans.record(
            Span(
                ATTEMPT, self.traceparent, self.parent, self.start_seconds, now, "client",
                attributes, error,
            )
        )  # fmt: skip


@dataclass(frozen=True)
class RouterSpans:
    """Begins spans. `sample_ratio`: the share that is sampled of requests whose client does not
    decide it; with 0 no request is sampled, whatever clients decide. `draw`: in [0, 1)."""

    record: Record
    sample_ratio: float
    draw: Callable[[], float]
    clock: Callable[[], float]

    def request(self, traceparent: str | None) -> Traced:
        """A request whose client sent this `traceparent`, or none."""
        if traceparent is not None and trace_id(traceparent):
            own = child_of(traceparent)
            return Traced(own if self.sample_ratio else unsampled(own), traceparent)
        return Traced(new_traceparent(sampled=self.draw() < self.sample_ratio), None)

    def end_request(
        self, traced: Traced, start_seconds: float, attributes: Attributes, error: str | None
    ) -> None:
        """The request is over; `error`: what went wrong, if anything."""
        if is_sampled(traced.own):
            end = self.clock()
            self.record(
                Span(
                    REQUEST, traced.own, traced.parent, start_seconds, end, "server", attributes,
                    error,
                )
            )  # fmt: skip

    def attempt(self, parent: str, target: str, url: str) -> Attempt | None:
        """`url`: of the engine that is asked. None where the request is not sampled."""
        if not is_sampled(parent):
            return None
        return Attempt(child_of(parent), parent, self.clock(), target, URL(url), self)
