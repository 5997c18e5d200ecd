"""Draws one or more runs: latencies as distributions, and the engine's state over time.

The only module that needs matplotlib, and only when it is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice_simulator.errors import INSTALL, UnusableConfigError
from sluice_simulator.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES: Final = (".png", ".svg")
DISTINCT_COLOURS: Final = 10
"""Number of colours in matplotlib's default cycle; more runs use a cycle of 20."""
NARROWEST: Final = 1.2
WIDEST: Final = 4.5
"""Widths of lines in points: NARROWEST for the last run, about WIDEST for the first of several."""
MAX_POINTS: Final = 400
"""Most points of a curve: more are not visible, and make an SVG large."""


def check_plot(path: Path) -> None:
    """Checks the path of a picture before anything is simulated.

    Raises:
        UnusableConfigError: the suffix is not supported, no file can be made there, or matplotlib
            is not installed.
    """
    if path.suffix not in SUFFIXES:
        allowed = " or ".join(SUFFIXES)
        raise UnusableConfigError(
            f"--plot: {str(path)!r} is not allowed; allowed: a file that ends in {allowed}"
        )
    place = path if path.exists() else path.parent
    if path.is_dir() or not path.parent.is_dir() or not os.access(place, os.W_OK):
        raise UnusableConfigError(
            f"--plot: {str(path)!r} is not allowed; allowed: a file in a folder that is there, "
            "where you may write"
        )
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        needed = f"matplotlib; it comes with the extra `simulate`: {INSTALL}"
        raise UnusableConfigError(f"--plot: needs {needed}") from None


def draw(path: Path, title: str, runs: Mapping[str, Record]) -> None:
    """Writes the picture, with one colour for each run."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    (ttft, itl), (usage, requests) = figure.subplots(2, 2)
    if len(runs) > DISTINCT_COLOURS:
        for axes in (ttft, itl, usage, requests):
            axes.set_prop_cycle(color=colormaps["tab20"].colors)  # type: ignore[attr-defined]
    for number, (name, record) in enumerate(runs.items(), start=1):
        # Lines get narrower, so that of similar runs the first is visible on both sides of the
        # last.
        width = NARROWEST + (WIDEST - NARROWEST) * (1 - number / len(runs))
        _distribution(ttft, name, width, *_ttft(record))
        _distribution(itl, name, width, record.gaps.values, record.gaps.counts)
        _over_time(usage, requests, width, record)
    _finish_distribution(ttft, "time to first token (ms)", "share of requests")
    _finish_distribution(itl, "gap between tokens (ms)", "share of tokens")
    usage.set(ylabel="token usage", xlabel="minutes", ylim=(0, 1.02))
    requests.set(ylabel="requests: running —, queued ··", xlabel="minutes")
    requests.set_ylim(bottom=0)
    for axes in (ttft, itl, usage, requests):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if len(runs) > 1:
        figure.legend(*ttft.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=120)


def _ttft(record: Record) -> tuple[list[float], list[int]]:
    values = [
        line.first_token_seconds - line.request.arrival_seconds
        for line in record.timelines
        if line.first_token_seconds is not None
    ]
    return values, [1] * len(values)


def _distribution(
    axes: Axes, name: str, width: float, values: Sequence[float], counts: Sequence[int]
) -> None:
    weighted = sorted(zip(values, counts, strict=True))
    total, seen = sum(counts), 0
    xs: list[float] = []
    ys: list[float] = []
    for value, count in weighted:
        seen += count
        if not ys or seen / total - ys[-1] >= 1 / MAX_POINTS or seen == total:
            xs.append(1000 * value)
            ys.append(seen / total)
    axes.plot(xs, ys, drawstyle="steps-post", label=name, linewidth=width)


def _finish_distribution(axes: Axes, label: str, share: str) -> None:
    from matplotlib.ticker import LogLocator

    axes.set(xlabel=label, ylabel=share, xscale="log", ylim=(0, 1.02))
    axes.xaxis.set_major_formatter(_short)
    axes.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
    axes.xaxis.set_minor_formatter(_short)
    axes.axhline(0.99, color="grey", linewidth=0.8, linestyle="--")
    at_the_left = axes.get_yaxis_transform()
    axes.text(0.01, 0.98, "p99", color="grey", fontsize=8, va="top", transform=at_the_left)


def _short(value: float, _position: float) -> str:
    """A tick's label, short enough not to touch its neighbours."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _over_time(usage: Axes, requests: Axes, width: float, record: Record) -> None:
    stride = max(1, len(record.samples) // MAX_POINTS)
    samples = record.samples[::stride]
    minutes = [sample.seconds / 60 for sample in samples]
    usage.plot(minutes, [sample.usage_ratio for sample in samples], linewidth=width)
    (line,) = requests.plot(minutes, [sample.running for sample in samples], linewidth=width)
    queued = [sample.queued for sample in samples]
    requests.plot(minutes, queued, linestyle=":", color=line.get_color(), linewidth=width)
