"""A picture of a scene: engines of each policy over time, and the requests that each served late.

Above, what a plan in hindsight holds is an area, or else the need. Below, each policy has a row of
bars: a minute's requests that were late, as a share that is cut at a fifth. Matplotlib is imported
only on call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sluice_simulator.autoscale.constants import Constants
from sluice_simulator.autoscale.demand import engines_needed, smoothed
from sluice_simulator.autoscale.grids import Candidate, Scene
from sluice_simulator.autoscale.outcome import Trail, kept_promise, outcome
from sluice_simulator.autoscale.policy_comparison import play

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEAN_SECONDS: Final = 60
CUT_SHARE: Final = 0.2
"""Share of a minute's requests at which a bar ends."""
AREA: Final = "plan"
STYLES: Final[Mapping[str, Mapping[str, Any]]] = {
    "ours": {"color": "#0b5fa5", "linewidth": 2.4, "zorder": 4},
    "hpa": {"color": "#d9822b", "linewidth": 1.1, "zorder": 3},
    "keda": {"color": "#3a8f4d", "linewidth": 1.1, "zorder": 2},
    "keda-tuned": {"color": "#3a8f4d", "linewidth": 1.1, "zorder": 2},
    "static": {"color": "#7a4fa3", "linewidth": 1.1, "linestyle": "--", "zorder": 1},
    "all-at-once": {"color": "#999999", "linewidth": 1.1, "linestyle": ":", "zorder": 1},
    AREA: {"color": "#b4bac2"},
}


@dataclass(frozen=True, slots=True)
class Played:
    """A policy's replay, and its figures."""

    policy: str
    label: str
    trail: Trail
    hours: float
    attainment: float


def played(scene: Scene, policy: str, candidate: Candidate) -> Played:
    """A candidate of the scene, replayed."""
    trail = play(scene, candidate)
    result = outcome(trail, scene.constants)
    return Played(policy, candidate.label, trail, result.replica_hours, result.attainment)


def draw(path: Path, title: str, scene: Scene, replays: Sequence[Played]) -> None:
    """Writes the picture, `.png` or `.svg`."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    options: Any = {"svg.hashsalt": path.stem, "svg.fonttype": "none", "font.size": 9.0}
    with mpl.rc_context(options):
        figure = Figure(figsize=(10, 5.6), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(f"{title} · {_promised(scene)}", fontsize=10)
        heights = (3, 0.25 * len(replays) + 0.1)
        engines, late = figure.subplots(2, 1, sharex=True, height_ratios=heights)
        _engines(engines, scene, replays)
        _late(late, scene, replays)
        for axes in (engines, late):
            axes.grid(axis="x", alpha=0.25, linewidth=0.5)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(
            *engines.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False
        )
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    if path.suffix == ".svg":
        path.write_text(re.sub(r"(\d\.\d\d)\d+", r"\1", path.read_text()))


def _promised(scene: Scene) -> str:
    promise, boot = scene.constants.promise, scene.constants.boot_seconds
    return (
        f"promised: first token in {promise.ttft_seconds:g} s, "
        f"{promise.itl_seconds * 1000:g} ms between tokens · starts of {boot:g} s"
    )


def _engines(axes: Axes, scene: Scene, replays: Sequence[Played]) -> None:
    for replay in replays:
        minutes, pods = _steps(replay.trail)
        style, label = STYLES[replay.policy], _label(replay)
        if replay.policy == AREA:
            axes.stairs(pods[:-1], minutes, fill=True, label=label, **style)
        else:
            axes.step(minutes, pods, where="post", label=label, **style)
    if all(replay.policy != AREA for replay in replays):
        _need(axes, scene)
    axes.set(ylabel="engines that hold a GPU")
    axes.set_ylim(bottom=0)
    axes.set_xlim(0, max(replay.trail.ended_seconds for replay in replays) / 60)
    axes.grid(axis="y", alpha=0.25, linewidth=0.5)


def _label(replay: Played) -> str:
    name = "plan in hindsight" if replay.policy == AREA else f"{replay.policy} ({replay.label})"
    return f"{name}: {replay.hours:.2f} h"


def _need(axes: Axes, scene: Scene) -> None:
    needed = engines_needed(scene.trace, scene.constants, scene.roles)
    total = [sum(roles) for roles in zip(*needed.values(), strict=True)]
    mean = smoothed(total, MEAN_SECONDS)[:: MEAN_SECONDS // 6]
    minutes = [at * (MEAN_SECONDS // 6) / 60 for at in range(len(mean))]
    axes.fill_between(minutes, mean, label="kept busy, on average", linewidth=0, **STYLES[AREA])


def _steps(trail: Trail) -> tuple[Sequence[float], Sequence[int]]:
    """Minutes at which the number of pods changes, and the numbers from then on."""
    steps = [trail.counts[0][:2]]
    for seconds, pods, _ in trail.counts[1:]:
        if pods != steps[-1][1]:
            steps.append((seconds, pods))
    steps.append((trail.ended_seconds, steps[-1][1]))
    return [seconds / 60 for seconds, _ in steps], [pods for _, pods in steps]


def _late(axes: Axes, scene: Scene, replays: Sequence[Played]) -> None:
    """Draws a row of bars for each policy, the first on top."""
    rows = len(replays)
    for number, replay in enumerate(replays):
        floor = rows - 1 - number
        late = _late_shares(replay.trail, scene.constants)
        heights = [floor + 0.9 * min(1.0, share / CUT_SHARE) for share in late]
        color, edges = STYLES[replay.policy]["color"], range(len(late) + 1)
        axes.stairs(heights, edges, baseline=floor, fill=True, color=color)
        axes.axhline(floor, color="black", linewidth=0.5)
    names = [f"{replay.policy}: {replay.attainment:.1%}" for replay in reversed(replays)]
    axes.set_yticks([row + 0.35 for row in range(rows)], names)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0, rows)
    axes.set(xlabel=f"minutes; bars: late requests of each minute, full height {CUT_SHARE:.0%}")


def _late_shares(trail: Trail, constants: Constants) -> list[float]:
    """Share of late requests among each minute's arrivals."""
    minutes = int(trail.works[-1].arrival_seconds // 60) + 1
    arrived, late = [0] * minutes, [0] * minutes
    for work in trail.works:
        minute = int(work.arrival_seconds // 60)
        arrived[minute] += 1
        late[minute] += not kept_promise(work, constants)
    return [missed / max(1, every) for missed, every in zip(late, arrived, strict=True)]
