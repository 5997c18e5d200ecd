"""A page as a picture, from what a Prometheus answers: for people without a Grafana at hand.

Knows no Prometheus: whoever calls brings the values.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import matplotlib

from dashboards.model import COLUMNS, Dashboard, Panel, Query, Unit

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.gridspec import GridSpec

Points = Sequence[tuple[float, float]]
Series = Sequence[tuple[Mapping[str, str], Points]]
Values = Callable[[str], Series]
"""Expression → its series: labels, and the points as Unix time and value."""
Queries = Sequence[tuple[Query, Series]]
HEIGHT_INCHES: Final = 2.5
HEAD_INCHES: Final = 0.7
WIDTH_INCHES: Final = 15.0
MAX_SERIES: Final = 9
FAR_OFF: Final = 3.0
"""A limit that is so many times as high as the highest value is not drawn: it would flatten all."""
MAX_STEPS_APART: Final = 3.0
_SCALES: Final[dict[Unit, tuple[float, str]]] = {
    "percentunit": (100.0, "%"), "percent": (1.0, "%"), "s": (1.0, "s"), "bytes": (2**-20, "MiB"),
    "Bps": (2**-20, "MiB/s"), "reqps": (1.0, "req/s"), "ops": (1.0, "/s"), "short": (1.0, ""),
    "celsius": (1.0, "°C"), "watt": (1.0, "W"),
}  # fmt: skip


class Span(NamedTuple):
    """Of all panels of a page, in Unix time; `step`: from one point to the next."""

    begin: float
    end: float
    step: float


def draw(page: Dashboard, values: Values, path: Path) -> None:
    """Writes a PNG of the panels that have values."""
    found = [
        (panel, [(query, values(query.expr)) for query in panel.queries]) for panel in page.panels()
    ]
    shown = [(panel, queries) for panel, queries in found if any(each for _, each in queries)]
    places = _places([panel for panel, _ in shown])
    rows = max(row for row, _ in places) + 1
    height = HEIGHT_INCHES * rows + HEAD_INCHES
    figure = pyplot.figure(figsize=(WIDTH_INCHES, height))
    top = 1 - HEAD_INCHES / height
    around = {"left": 0.04, "right": 0.99, "bottom": 0.3 / rows, "top": top}
    grid = GridSpec(rows, COLUMNS, figure=figure, hspace=0.4, wspace=1.3, **around)
    span = _span(points for _, queries in shown for _, each in queries for _, points in each)
    for (panel, queries), (row, column) in zip(shown, places, strict=True):
        axes = figure.add_subplot(grid[row, column : column + panel.width])
        axes.set_title(panel.title, fontsize=9, loc="left", fontweight="bold")
        _KINDS[panel.kind](axes, panel, queries, span)
    figure.suptitle(page.title, x=0.01, y=1 - 0.1 / height, ha="left")
    figure.savefig(path, dpi=75)
    pyplot.close(figure)


def _places(panels: Sequence[Panel]) -> list[tuple[int, int]]:
    """Row and column of each, one after the other."""
    row = column = 0
    places = []
    for panel in panels:
        if column + panel.width > COLUMNS:
            row, column = row + 1, 0
        places.append((row, column))
        column += panel.width
    return places


def _span(series: Iterable[Points]) -> Span:
    times = [[at for at, _ in points] for points in series]
    steps = [after - at for each in times for at, after in pairwise(each)]
    begin, end = min(map(min, times)), max(map(max, times))
    return Span(begin, end, min(steps, default=end - begin))


def line_of(points: Points, span: Span) -> list[tuple[float, float]]:
    """Seconds since the beginning and values, NaN where nothing was known for a while: a line has a
    hole there, as in Grafana."""
    drawn: list[tuple[float, float]] = []
    for at, value in points:
        since = at - span.begin
        if drawn and since - drawn[-1][0] > MAX_STEPS_APART * span.step:
            drawn.append((drawn[-1][0], math.nan))
        drawn.append((since, value))
    return drawn


def _lines(axes: Axes, panel: Panel, queries: Queries, span: Span) -> None:
    scale, unit = _SCALES[panel.unit]
    lines = [(_named(query, labels), points) for query, all_ in queries for labels, points in all_]
    lines = [each for each in lines if any(value for _, value in each[1])] or lines
    for name, points in lines[:MAX_SERIES]:
        times, values = zip(*line_of(points, span), strict=True)
        axes.plot(times, [value * scale for value in values], label=name, linewidth=1.2)
    axes.set_xlim(0, span.end - span.begin)
    highest = axes.get_ylim()[1]
    if panel.limit is not None and panel.limit * scale < FAR_OFF * highest:
        axes.axhline(panel.limit * scale, color="red", linewidth=0.8, linestyle="--")
    axes.set_ylim(bottom=0)
    axes.set_ylabel(unit, fontsize=7, labelpad=1)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=6, loc="best", framealpha=0.6)


def _number(axes: Axes, panel: Panel, queries: Queries, span: Span) -> None:
    axes.axis("off")
    value = queries[0][1][0][1][-1][1]
    axes.text(0.5, 0.5, f"{value:g}", fontsize=28, ha="center", va="center")


def _table(axes: Axes, panel: Panel, queries: Queries, span: Span) -> None:
    axes.axis("off")
    rows = [labels for labels, points in queries[0][1] if points]
    columns = sorted({label for labels in rows for label in labels})
    cells = [[labels.get(column, "") for column in columns] for labels in rows[:12]]
    made = axes.table(cellText=cells, colLabels=columns, loc="upper center", cellLoc="left")
    made.auto_set_font_size(False)
    made.set_fontsize(6.5)


def _named(query: Query, labels: Mapping[str, str]) -> str:
    text = re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), query.legend)
    return text or "value"


_KINDS: Final[dict[str, Callable[[Axes, Panel, Queries, Span], None]]] = {
    "timeseries": _lines,
    "stat": _number,
    "table": _table,
}
