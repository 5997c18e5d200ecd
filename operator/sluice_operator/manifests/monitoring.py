"""Objects for the Prometheus operator: PodMonitors, and the rules for the SLO of one service.

The rules tell how fast a service uses its error budget. A promise that 95 % of the requests get
their first token in time allows 5 % to miss it: the budget. An alert fires when 14.4 times as much
misses it for an hour (and still does), or 6 times as much for six hours. Factors and windows are
from "Alerting on SLOs" in Google's Site Reliability Workbook, where they spend 2 % and 5 % of a
month's budget. The metrics are in `sluice_contract.cluster.metrics`.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster import labels
from sluice_contract.cluster.metrics import LATENCY_SECONDS

from sluice_operator.api.scaling import Slo
from sluice_operator.kube.kinds import POD_MONITOR, PROMETHEUS_RULE, Manifest
from sluice_operator.manifests.alerting import Alert, Severity
from sluice_operator.manifests.metadata import ENGINE, ROUTER, Owner

SERVICE: Final = re.sub(r"[^a-zA-Z0-9_]", "_", labels.SERVICE)
"""Prometheus' spelling of the target label that names the service."""
MISSED: Final = "sluice:slo_missed:ratio_rate"
"""Recorded series, followed by the window: the share of answers that missed the promise `slo`."""
MAX_FAILED: Final = 0.001
"""Share of the answers that may fail or break off."""
REQUESTS: Final = "sluice_router_requests_total"


@dataclass(frozen=True)
class Pace:
    """One speed at which the budget is used up, and how it is noticed."""

    factor: float
    long: str
    """Long window of the alert, as Prometheus writes it."""
    short: str
    """Short window, which must exceed the threshold too, so that the alert ends soon after its
    cause."""
    lasting: str
    severity: Severity
    most: float
    """Maximum threshold, as a share of the answers beyond the budget that could miss the promise.
    It replaces a pace that a large budget makes impossible."""

    def threshold(self, budget: float) -> float:
        """The share that misses the promise at this pace."""
        return min(self.factor * budget, budget + self.most * (1 - budget))


PACES: Final = (
    Pace(14.4, "1h", "5m", "2m", "critical", 0.9),
    Pace(6, "6h", "30m", "15m", "warning", 0.5),
)


@dataclass(frozen=True)
class Timed:
    """A histogram of a promised time."""

    name: str
    selector: str = ""

    def rate(self, suffix: str, where: str, window: str, le: float | None = None) -> str:
        """Rate of one of the histogram's series, added up over the pods."""
        bound = "" if le is None else f'le="{float(le)}"'
        chosen = ", ".join(filter(None, (bound, self.selector, where)))
        return _sum(f"rate({self.name}{suffix}{{{chosen}}}[{window}])")


@dataclass(frozen=True)
class SloPromise:
    """One part of an slo."""

    slo: str
    """Value of the label `slo`."""
    alert: str
    budget: float
    """Share that may miss it."""
    text: str
    panel: str
    limit_seconds: float | None = None
    histograms: tuple[Timed, ...] = ()
    """Histograms of the promise. Each counts only where those before it have no observations."""


def pod_monitors(owner: Owner) -> tuple[Manifest, ...]:
    """The PodMonitors of a service: of its engines, and of its routers."""
    return _pod_monitor(owner, ENGINE), _pod_monitor(owner, ROUTER)


def _pod_monitor(owner: Owner, component: str) -> Manifest:
    selector = {labels.SERVICE: owner.service, labels.COMPONENT: component}
    return owner.child(POD_MONITOR, f"{owner.service}-{component}", component) | {
        "spec": {
            "selector": {"matchLabels": selector},
            "podTargetLabels": [labels.SERVICE, labels.ROLE, labels.REVISION],
            "podMetricsEndpoints": [{"port": "metrics"}],
        }
    }


def slo_groups(
    namespace: str, service: str, slo: Slo, runbook_url_base: str = ""
) -> list[Manifest]:
    """Groups of a rule file for one service: recorded shares, and alerts on them."""
    where = f'namespace="{namespace}", {SERVICE}="{service}"'
    promises = tuple(_promises(slo))
    recorded = [_record(promise, where, window) for promise in promises for window in _windows()]
    alerts = [
        _alert(promise, where, pace).to_rule(runbook_url_base)
        for promise in promises
        for pace in PACES
    ]
    return [{"name": f"sluice-slo-{namespace}-{service}", "rules": recorded + alerts}]


def prometheus_rule(owner: Owner, slo: Slo, runbook_url_base: str) -> Manifest:
    """PrometheusRule with `slo_groups`, as a child of the service."""
    groups = slo_groups(owner.namespace, owner.service, slo, runbook_url_base)
    rule = owner.child(PROMETHEUS_RULE, rule_name(owner.service), ROUTER)
    return rule | {"spec": {"groups": groups}}


def rule_name(service: str) -> str:
    """The name of a service's PrometheusRule."""
    return f"{service}-slo"


def _promises(slo: Slo) -> Iterator[SloPromise]:
    budget = round(1 - float(slo.percentile) / 100, 4)
    if slo.ttft_milliseconds is not None:
        yield SloPromise(
            "ttft",
            "SluiceTtftBudgetBurn",
            budget,
            f"first tokens come later than {slo.ttft_milliseconds} ms",
            "Time to first token",
            slo.ttft_milliseconds / 1000,
            # The router's times include waiting there; engines begin to count later.
            (
                Timed("sluice_router_first_byte_seconds", 'answer="stream"'),
                Timed("sluice_time_to_first_token_seconds"),
            ),
        )
    if slo.itl_milliseconds is not None:
        yield SloPromise(
            "itl",
            "SluiceItlBudgetBurn",
            budget,
            f"tokens are further apart than {slo.itl_milliseconds} ms",
            "Time between tokens",
            slo.itl_milliseconds / 1000,
            (Timed("sluice_inter_token_seconds"),),
        )
    yield SloPromise(
        "errors",
        "SluiceErrorBudgetBurn",
        MAX_FAILED,
        "answers fail or break off",
        "Requests that fail",
    )


def _windows() -> list[str]:
    return [window for pace in PACES for window in (pace.short, pace.long)]


def _record(promise: SloPromise, where: str, window: str) -> Manifest:
    return {
        "record": f"{MISSED}{window}",
        "expr": _missed(promise, where, window),
        "labels": {"slo": promise.slo},
    }


def _missed(promise: SloPromise, where: str, window: str) -> str:
    if promise.limit_seconds is None:
        failed = (f'code=~"5..|429", {where}', f'outcome="cut", {where}')
        rates = " or ".join(f"rate({REQUESTS}{{{outcome}}}[{window}])" for outcome in failed)
        return f"{_sum(rates)} / {_sum(f'rate({REQUESTS}{{{where}}}[{window}])')}"
    *first, last = promise.histograms
    counts = [f"({first_promise.rate('_count', where, window)} > 0)" for first_promise in first]
    counts.append(last.rate("_count", where, window))
    return " or ".join(
        f"1 - ({_in_time(timed, promise.limit_seconds, where, window)}) / {count}"
        for timed, count in zip(promise.histograms, counts, strict=True)
    )


def _in_time(timed: Timed, limit_seconds: float, where: str, window: str) -> str:
    return " + ".join(
        f"{share:.6g} * {timed.rate('_bucket', where, window, bound)}"
        for bound, share in between(limit_seconds)
    )


def between(limit_seconds: float) -> list[tuple[float, float]]:
    """The buckets on both sides of a limit, with weights that sum up to the share below it,
    interpolated linearly as in histogram_quantile. One bucket if the limit is its bound. For a
    limit beyond the last bound: the last bucket, so times above that bound count as missed."""
    place = bisect_left(LATENCY_SECONDS, limit_seconds)
    if place == len(LATENCY_SECONDS):
        return [(LATENCY_SECONDS[-1], 1.0)]
    above = LATENCY_SECONDS[place]
    below = LATENCY_SECONDS[place - 1] if place else 0.0
    share = (limit_seconds - below) / (above - below)
    weighed = [(below, 1 - share), (above, share)]
    return [(bound, weight) for bound, weight in weighed if bound and weight]


def _sum(rates: str) -> str:
    return f"sum by (namespace, {SERVICE}) ({rates})"


def _alert(promise: SloPromise, where: str, pace: Pace) -> Alert:
    threshold = f"{pace.threshold(promise.budget):.6g}"
    selector = f'{{slo="{promise.slo}", {where}}}'
    name = f"{{{{ $labels.namespace }}}}/{{{{ $labels.{SERVICE} }}}}"
    return Alert(
        name=promise.alert,
        value=f"{MISSED}{pace.long}{selector}",
        condition=f"> {threshold} and {MISSED}{pace.short}{selector} > {threshold}",
        lasting=pace.lasting,
        severity=pace.severity,
        summary=f"{name}: {promise.text}",
        description=f"{{{{ $value | humanizePercentage }}}} over {pace.long}, of which "
        f"{promise.budget:.1%} may.",
        panel=("sluice-service", promise.panel),
        labels={"window": pace.long},
        chosen=f"var-namespace={{{{ $labels.namespace }}}}&var-service={{{{ $labels.{SERVICE} }}}}",
    )
