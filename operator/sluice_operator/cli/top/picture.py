"""A snapshot of the cluster as tables and bars for a terminal.

Pure. Every text says what a colour says. Below `WIDE` columns names lose the pool's part, and bars
of KV pages are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from sluice_contract.wire.load import LoadReport

from sluice_operator.api.conditions import READY, STALLED
from sluice_operator.cli.rollout.progress import bar, progress_of
from sluice_operator.cli.top.engines import EngineRow, PoolRow, pool_rows, routers
from sluice_operator.cli.top.snapshot import Snapshot, key_of
from sluice_operator.cli.top.traffic import (
    PERCENTILES,
    EngineRates,
    TrafficRates,
    engine_rates,
    ledger,
    traffic,
)
from sluice_operator.conditions.conditions import find
from sluice_operator.kube.kinds import Manifest

WIDE: Final = 120
MOST_COLUMNS: Final = 132
"""Maximum width of a table; further apart, its columns would be hard to follow."""
ROLLOUT_CELLS: Final = 32
KV_CELLS: Final = 10
STYLES: Final = {"well": "green", "busy": "yellow", "bad": "bold red"}
QUIET: Final = "bright_black"
FATES: Final = ("answered", "resumed", "refused", "abandoned", "lost")
SORTS: Final[Mapping[str, Callable[[LoadReport], float]]] = {
    "name": lambda report: 0.0,
    "queue": lambda report: report.figures.queued_requests,
    "running": lambda report: report.figures.running_requests,
    "KV held": lambda report: report.figures.kv_used,
}
"""What engines can be sorted by, the most first; equal ones by name."""


class Look(NamedTuple):
    """How much is drawn."""

    width: int
    """Columns of the terminal."""
    sort: str = "name"
    """What engines of a pool are sorted by, one of `SORTS`."""

    @property
    def is_wide(self) -> bool:
        """Whether there is room for whole names and for bars of KV pages."""
        return self.width >= WIDE

    def name(self, engine: str, pool: str) -> str:
        """A pod's name; in a narrow terminal, its revision and its last part."""
        if self.is_wide:
            return engine
        first, _, rest = engine.removeprefix(f"{pool}-").partition("-")
        return f"{first}…{rest.rpartition('-')[2]}" if rest else first


def picture(snapshot: Snapshot, where: str, look: Look) -> Group:
    """All of a snapshot; `where`: what was asked for, such as `namespace shop`."""
    notes = (_text(f"! {note}", STYLES["busy"]) for note in snapshot.notes)
    parts: list[RenderableType] = [_head(snapshot, where), *notes]
    rows = [(service, pool_rows(service, snapshot)) for service in snapshot.services]
    columns = _name_columns((pool for _, pools in rows for pool in pools), look)
    for service, pools in rows:
        parts += [Text(), _title(service), _facts(service, pools, snapshot, look)]
        if pools:
            rates = engine_rates(key_of(service), snapshot)
            parts.append(_engines(pools, look, columns, rates))
    if not rows:
        parts.append(Text(f"No InferenceServices in {where}."))
    return Group(*parts)


def _head(snapshot: Snapshot, where: str) -> Text:
    count = len(snapshot.services)
    services = f"{count} service" + ("" if count == 1 else "s")
    return Text(f"{where} · {services} · {snapshot.now:%H:%M:%S} UTC", QUIET)


def _title(service: Manifest) -> Text:
    """Name, how it is, its mode, what its engines run on, and its address."""
    status, metadata = service.get("status") or {}, service["metadata"]
    ready, stalled = find(status, READY) or {}, find(status, STALLED) or {}
    is_ready, is_stalled = ready.get("status") == "True", stalled.get("status") == "True"
    title = Text.assemble((f"{metadata['namespace']}/{metadata['name']}", "bold"), "  ")
    reason = ready.get("reason", "not looked at yet")
    if is_ready:
        title.append(str(reason), STYLES["well"])
    else:
        title.append(f"not ready: {reason}", STYLES["bad" if is_stalled else "busy"])
    if is_stalled:
        title.append("  needs a person", STYLES["bad"])
    kinds = [pool.get("accelerator") for pool in (status.get("pools") or {}).values()]
    accelerators = ", ".join(dict.fromkeys(filter(None, kinds)))
    title.append(f"  {status['mode']}" if "mode" in status else "", QUIET)
    title.append(f" on {accelerators}" if accelerators else "", QUIET)
    title.append(f"  {status['url']}" if "url" in status else "", QUIET)
    return title


def _facts(service: Manifest, pools: Iterable[PoolRow], snapshot: Snapshot, look: Look) -> Table:
    """Facts of a service other than its engines."""
    table = Table.grid(padding=(0, 2), pad_edge=False)
    table.add_column(style=QUIET, no_wrap=True)
    table.add_column()
    status, progress = service.get("status") or {}, progress_of(service)
    if progress.state != "Done":
        style = STYLES["bad" if progress.state == "Stopped" else "busy"]
        table.add_row("  roll-out", _text(progress.line, style))
    for row in pools:
        if ready := _rollout(row, look, is_done=progress.state == "Done"):
            table.add_row("", ready)
    if scaling := status.get("scaling"):
        table.add_row("  scaling", _scaling(scaling, snapshot.now))
        if start := scaling.get("start"):
            table.add_row("  start", _text(start))
    if slo := _slo(status.get("scaling") or {}, pools):
        table.add_row("  slo", slo)
    if now := traffic(key_of(service), snapshot):
        table.add_row("  traffic", _traffic(now))
    if counts := ledger(key_of(service), snapshot):
        table.add_row("  requests", _ledger(counts))
    elif status_ledger := status.get("ledger"):
        text = _ledger(status_ledger)
        table.add_row("  requests", text.append("; up to 5 min old", QUIET))
    table.add_row("  routers", _routers(service, snapshot))
    return table


def _rollout(row: PoolRow, look: Look, *, is_done: bool) -> Text | None:
    """How many engines of the new revision are ready; None where nothing is replaced."""
    revisions = ((row.pool or {}).get("status") or {}).get("revisions") or ()
    former = sum(revision["replicas"] for revision in revisions if not revision["current"])
    desired, ready = (row.summary.get(f"{name}Replicas", 0) for name in ("desired", "updated"))
    if not desired or (ready >= desired and not former) or (is_done and not former):
        return None
    cells = ROLLOUT_CELLS if look.is_wide else ROLLOUT_CELLS // 2
    text = Text.assemble(f"{row.role:<9}", (bar(ready / desired, cells), "cyan"))
    text.append(f" {ready} of {desired} ready")
    loading = sum(revision.get("loading") or 0 for revision in revisions if revision["current"])
    text.append(f", {loading} loading" if loading else "")
    text.append(f"; {former} former" if former else "")
    return text


def _scaling(scaling: Manifest, now: datetime) -> Text:
    age = _age((now - datetime.fromisoformat(scaling["time"])).total_seconds())
    return _text(f"{age} ago: {scaling['reason']}: {scaling['message']}")


def _slo(scaling: Manifest, pools: Iterable[PoolRow]) -> Text:
    """The share of requests that kept the SLO, and how many wait now at engines with an SLO."""
    text = Text()
    if (share := scaling.get("inTimePercent")) is not None:
        text.append(f"{share} % of {scaling.get('inTimeRequests', 0):,} requests kept it")
    reports = [engine.report for pool in pools for engine in pool.engines if engine.report]
    counting = [report for report in reports if report.slo is not None]
    if waiting := sum(report.figures.queued_requests for report in counting):
        text.append(f"{'; ' if text else ''}{waiting:,} wait now", STYLES["busy"])
    if late := sum(report.slo.late for report in counting if report.slo):
        text.append(f"{', ' if text else ''}{late:,} are late", STYLES["bad"])
    return text


def _traffic(now: TrafficRates) -> Text:
    """Requests and tokens a second, and TTFT."""
    parts = []
    if now.requests_per_second is not None:
        parts.append(f"{_rate(now.requests_per_second)} requests/s")
    if now.tokens_per_second is not None and now.prompt_tokens_per_second is not None:
        prompt, generated = _rate(now.prompt_tokens_per_second), _rate(now.tokens_per_second)
        parts.append(f"tokens/s {prompt} in, {generated} out")
    if now.ttft_seconds is not None:
        ttft = (f"p{p} {_latency(s)}" for p, s in zip(PERCENTILES, now.ttft_seconds, strict=True))
        parts.append(f"TTFT {', '.join(ttft)}")
    age = "since the routers started" if now.seconds is None else f"last {_age(now.seconds)}"
    return Text("; ".join(parts)).append(f" ({age})", QUIET)


def _rate(per_second: float) -> str:
    return f"{per_second:,.0f}" if per_second >= 10 or not per_second else f"{per_second:.1f}"


def _latency(seconds: float) -> str:
    if math.isinf(seconds):
        return "over 5 min"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _ledger(counts: Mapping[str, int]) -> Text:
    """Counts of the requests since the routers started, by their fate."""
    text = Text()
    for fate in FATES:
        count = counts.get(fate, 0)
        style = STYLES["bad"] if fate == "lost" and count else ""
        text.append(", " if text else "")
        text.append(f"{count:,} {fate}", style)
    return text


def _routers(service: Manifest, snapshot: Snapshot) -> Text:
    ready, count = routers(service, snapshot)
    of_router = snapshot.loads.get(key_of(service))
    text = Text(f"{ready} of {count} ready" if snapshot.pods else "unknown")
    if of_router is not None:
        waiting = of_router.load.waiting_requests
        style = STYLES["busy"] if waiting else ""
        text.append(f", {waiting:,} requests wait for an engine" if waiting else "", style)
        text.append(f" at {of_router.router}" if waiting and count > 1 else "", QUIET)
    return text


def _name_columns(pools: Iterable[PoolRow], look: Look) -> int:
    """Width of the name column in characters, equal for all services so that their columns
    align."""
    names = [look.name(engine.name, row.name) for row in pools for engine in row.engines]
    return max(map(len, names), default=0) + 4


def _engines(
    pools: Iterable[PoolRow], look: Look, columns: int, rates: Mapping[str, EngineRates]
) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    table.width = min(look.width, MOST_COLUMNS)
    table.add_column("  pool, engines", no_wrap=True, min_width=columns)
    table.add_column("state", ratio=1)
    widths = {"queue": 6, "running": 9, "KV held": 16 if look.is_wide else 7, "ITL": 7}
    if look.is_wide:
        widths["tokens/s"] = 8
    for column, width in widths.items():
        table.add_column(column, justify="right", no_wrap=True, min_width=width)
    for row in pools:
        cells = _cells(row.engines, look, rates)
        table.add_row(f"  {row.role}", _pool_state(row), *cells, style="bold")
        for engine in sorted(row.engines, key=lambda engine: _rank(engine, look.sort)):
            name = Text(f"    {look.name(engine.name, row.name)}", overflow="ellipsis")
            state = _text(engine.state, STYLES[engine.level])
            table.add_row(name, state, *_cells([engine], look, rates))
    return table


def _rank(engine: EngineRow, sort: str) -> tuple[float, str]:
    """Place of an engine in its pool; one without a report comes last but by name."""
    figure = SORTS[sort](engine.report) if engine.report is not None else -1.0
    return (0.0 if sort == "name" else -figure), engine.name


def _pool_state(row: PoolRow) -> Text:
    """Ready and desired engines, and how many drain."""
    summary = row.summary
    if not summary:
        return Text("no longer asked for", STYLES["busy"])
    ready, desired = (summary.get(f"{name}Replicas", 0) for name in ("ready", "desired"))
    text = Text(f"{ready} of {desired} ready", STYLES["well" if ready >= desired else "busy"])
    if draining := summary.get("drainingReplicas", 0):
        text.append(f", {draining} draining", STYLES["busy"])
    return text


def _cells(
    engines: Iterable[EngineRow], look: Look, rates: Mapping[str, EngineRates]
) -> list[Text]:
    """Queue, running, KV pages, ITL and tokens a second of one engine or of several together."""
    engines = tuple(engines)
    reports = [engine.report for engine in engines if engine.report is not None]
    queued = sum(report.figures.queued_requests for report in reports)
    running = sum(report.figures.running_requests for report in reports)
    limit = sum(report.max_running_requests for report in reports)
    pages = sum(report.figures.kv_pages_total for report in reports)
    free = sum(report.figures.kv_pages_free for report in reports)
    cached = sum(report.figures.kv_pages_evictable for report in reports)
    if not reports:
        return [Text("-", QUIET)] * (5 if look.is_wide else 4)
    held, light = (round(100 * count / max(1, pages)) for count in (pages - free - cached, cached))
    percent = f"{held} %" if pages else "-"
    cells = [Text(f"{queued:,}"), Text(f"{running:,}/{limit:,}"), Text(percent)]
    cells.append(Text(_itl(reports)))
    if look.is_wide:
        shares = bar(held / 100, KV_CELLS, min(light, 100 - held) / 100)
        cells[2] = Text.assemble((shares, "cyan"), f"{percent:>6}")
        computed = [rates[engine.name].computed for engine in engines if engine.name in rates]
        cells.append(Text(_rate(sum(computed))) if computed else Text("-", QUIET))
    return cells


def _itl(reports: Iterable[LoadReport]) -> str:
    """Mean over engines that decode, each weighted by what it runs."""
    timed = [
        (report.figures.itl_seconds, max(1, report.figures.running_requests))
        for report in reports
        if report.figures.itl_seconds is not None
    ]
    if not timed:
        return "-"
    mean = sum(seconds * weight for seconds, weight in timed) / sum(weight for _, weight in timed)
    return f"{mean * 1000:.0f} ms" if mean >= 0.01 else f"{mean * 1000:.1f} ms"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{int(seconds / length)} {unit}"
    return f"{max(0, int(seconds))} s"


def _text(words: str, style: str = "") -> Text:
    """Words of the cluster, without what would move a terminal's cursor."""
    shown = "".join(letter if letter.isprintable() else " " for letter in words)
    return Text(" ".join(shown.split()), style)
