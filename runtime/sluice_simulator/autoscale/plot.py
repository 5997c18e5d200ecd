"""A picture of a comparison: the need, the engines of each policy, and the latencies of requests.

Matplotlib is imported only on call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice_simulator.autoscale.constants import GOAL, Constants
from sluice_simulator.autoscale.demand import engines_needed, smoothed
from sluice_simulator.autoscale.grids import Scene
from sluice_simulator.autoscale.outcome import Trail, kept_promise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEAN_SECONDS: Final = 60
LEAST_SHARE: Final = 0.5
"""Of the lower axes: minutes that are worse lie on its edge."""
WIDTHS: Final = (2.6, 1.3)
"""Of the first policy's line, and of others."""


def draw(path: Path, scene: Scene, trails: Mapping[str, Trail]) -> None:
    """Writes the picture; `trails` by what their lines are called."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(scene.trace.name, fontsize=11)
    replicas, attained = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    _need(replicas, scene)
    for number, (name, trail) in enumerate(trails.items()):
        style = {"linewidth": WIDTHS[min(number, 1)], "zorder": 3.0 - min(number, 1)}
        minutes, pods = _pods(trail)
        (line,) = replicas.step(minutes, pods, where="post", label=name, **style)
        shares = _shares(trail, scene.constants)
        attained.plot(range(len(shares)), shares, color=line.get_color(), **style)
    replicas.set(ylabel="replicas that hold a GPU")
    replicas.set_ylim(bottom=0)
    attained.set(ylabel="of a minute's requests,\nas promised", xlabel="minutes")
    attained.set_ylim(LEAST_SHARE, 1.01)
    attained.axhline(GOAL, color="grey", linewidth=0.8, linestyle="--")
    for axes in (replicas, attained):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*replicas.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    figure.savefig(path, dpi=120)


def _need(axes: Axes, scene: Scene) -> None:
    needed = engines_needed(scene.trace, scene.constants, scene.roles)
    total = [sum(roles) for roles in zip(*needed.values(), strict=True)]
    mean = smoothed(total, MEAN_SECONDS)[:: MEAN_SECONDS // 6]
    minutes = [at * (MEAN_SECONDS // 6) / 60 for at in range(len(mean))]
    axes.fill_between(minutes, mean, color="lightgrey", label="needed at least")


def _pods(trail: Trail) -> tuple[Sequence[float], Sequence[int]]:
    changes = [(0.0, trail.counts[0][1]), *((seconds, pods) for seconds, pods, _ in trail.counts)]
    return [seconds / 60 for seconds, _ in changes], [pods for _, pods in changes]


def _shares(trail: Trail, constants: Constants) -> list[float]:
    """Of each minute's arrivals; a minute without any is good."""
    minutes = int(trail.works[-1].arrival_seconds // 60) + 1
    arrived, good = [0] * minutes, [0] * minutes
    for work in trail.works:
        minute = int(work.arrival_seconds // 60)
        arrived[minute] += 1
        good[minute] += kept_promise(work, constants)
    return [
        max(LEAST_SHARE, of_it / every) if every else 1.0
        for of_it, every in zip(good, arrived, strict=True)
    ]
