"""Summaries as text for a terminal: one run in full, several runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sluice_runtime.scheduler.settings import SchedulerSettings

from sluice_simulator.costs import Cost
from sluice_simulator.percentiles import Spread
from sluice_simulator.report import Summary
from sluice_simulator.traces.request import Trace


def duration(seconds: float) -> str:
    """A time with three digits, in a fitting unit."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1.0:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 120.0:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min"


def shown(times: Spread, seconds: float) -> str:
    """A value of `times`; a dash where there is none."""
    return duration(seconds) if times.count else "–"


def number(value: float) -> str:
    """A whole number with separators of thousands; millions with three digits."""
    return f"{value / 1e6:.3g} M" if value >= 1e7 else f"{value:,.0f}"


def headline(trace: Trace, settings: SchedulerSettings, cost: Cost) -> str:
    """Two lines about what was simulated."""
    rate = len(trace.requests) / trace.seconds if trace.seconds else 0.0
    arrivals = f"in {duration(trace.seconds)} ({rate:.3g}/s)" if rate else "at once"
    chunk = "off" if settings.chunk_size is None else number(settings.chunk_size)
    facts = (
        cost.name,
        f"pool {number(settings.limits.kv_pool_tokens)} tokens",
        f"chunk {chunk}{', mixed' if settings.mixed else ''}",
        f"at most {number(settings.max_running_requests)} running",
    )
    return (
        f"{trace.name}: {number(len(trace.requests))} requests {arrivals}, "
        f"{number(trace.prompt_tokens)} tokens in, {number(trace.output_tokens)} out\n"
        f"{' · '.join(facts)}"
    )


def one_run(summary: Summary) -> str:
    """Failures, times by percentile, then what the engine did."""
    rows = [
        ("", "mean", "p50", "p90", "p99", "worst"),
        *(
            (name, *(shown(times, value) for value in _times(times)))
            for name, times in (
                ("TTFT", summary.ttft),
                ("ITL", summary.itl),
                ("end to end", summary.e2e),
                ("queued", summary.queued),
            )
        ),
    ]
    return "\n\n".join(filter(None, (failures(summary), table(rows), facts_of(summary))))


def failures(summary: Summary) -> str:
    """Number of failed requests and the reason of the first; empty when none failed."""
    if not summary.failed:
        return ""
    of = number(summary.finished + summary.failed)
    return f"{number(summary.failed)} of {of} requests failed; the first: {summary.first_error}"


def facts_of(summary: Summary) -> str:
    """Facts about a run, one a line."""
    steps = ", ".join(f"{number(n)} {mode}" for mode, n in summary.steps.items() if n)
    busy = summary.busy_seconds / summary.seconds if summary.seconds else 0.0
    facts = (
        ("requests", f"{number(summary.finished)} finished, {number(summary.failed)} failed"),
        ("took", f"{duration(summary.seconds)}, the device busy for {busy:.0%} of it"),
        (
            "throughput",
            f"{number(summary.output_rate)} tok/s out, {number(summary.input_rate)} tok/s in, "
            f"{summary.cached_share:.0%} of it from the prefix cache",
        ),
        ("token usage", f"mean {summary.usage_mean:.0%}, peak {summary.usage_peak:.0%}"),
        (
            "running",
            f"mean {summary.running_mean:.3g}, peak {summary.running_peak}; "
            f"longest queue {summary.queue_peak}",
        ),
        ("steps", steps),
        ("chunk cuts", number(summary.chunk_cuts)),
        ("retractions", number(summary.retractions)),
    )
    return "\n".join(f"{name:<14} {fact}" for name, fact in facts)


Columns = Sequence[tuple[str, Callable[[Summary], str]]]
COLUMNS: Final[Columns] = (
    ("TTFT p50", lambda run: shown(run.ttft, run.ttft.p50)),
    ("p90", lambda run: shown(run.ttft, run.ttft.p90)),
    ("p99", lambda run: shown(run.ttft, run.ttft.p99)),
    ("worst", lambda run: shown(run.ttft, run.ttft.worst)),
    ("ITL p50", lambda run: shown(run.itl, run.itl.p50)),
    ("p99", lambda run: shown(run.itl, run.itl.p99)),
    ("e2e p50", lambda run: shown(run.e2e, run.e2e.p50)),
    ("p99", lambda run: shown(run.e2e, run.e2e.p99)),
    ("tok/s out", lambda run: number(run.output_rate)),
    ("cached", lambda run: f"{run.cached_share:.0%}"),
    ("usage", lambda run: f"{run.usage_mean:.0%}"),
    ("retracted", lambda run: number(run.retractions)),
)
URGENT: Final[Columns] = (
    ("urgent TTFT p50", lambda run: shown(run.urgent_ttft, run.urgent_ttft.p50)),
    ("p99", lambda run: shown(run.urgent_ttft, run.urgent_ttft.p99)),
)
SMALL_TENANTS: Final[Columns] = (
    ("small tenants p50", lambda run: shown(run.small_tenants_ttft, run.small_tenants_ttft.p50)),
    ("p99", lambda run: shown(run.small_tenants_ttft, run.small_tenants_ttft.p99)),
)


def comparison(first_column: str, runs: Mapping[str, Summary]) -> str:
    """Failures, then a table with a row for each run; with columns for urgent requests and small
    tenants if there are any."""
    columns = [*COLUMNS]
    columns += URGENT if any(run.urgent_ttft.count for run in runs.values()) else ()
    columns += SMALL_TENANTS if any(run.small_tenants_ttft.count for run in runs.values()) else ()
    head = (first_column, *(name for name, _ in columns))
    rows = [head, *((name, *(show(run) for _, show in columns)) for name, run in runs.items())]
    failed = [f"{name}: {failures(run)}\n" for name, run in runs.items() if run.failed]
    return "\n".join((*failed, table(rows)))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Table with columns as wide as their widest cell; the first is aligned left, the others
    right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _times(times: Spread) -> tuple[float, ...]:
    return times.mean, times.p50, times.p90, times.p99, times.worst
