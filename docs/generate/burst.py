"""`.venv/bin/python -m docs.generate.burst` draws docs/pictures/burst.svg: pools follow a burst.

Half an hour of requests is replayed on a simulated fleet whose pools the operator's own `decide`
sizes. Needs matplotlib, which `make setup` installs.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.constants import AZURE, ScenePromise
from sluice_simulator.autoscale.grids import POLICIES, Scene
from sluice_simulator.autoscale.outcome import Trail
from sluice_simulator.autoscale.policy_comparison import play
from sluice_simulator.percentiles import spread
from sluice_simulator.traces.request import Trace, TraceRequest, trace_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE: Final = Path(__file__).parents[1] / "pictures" / "burst.svg"
STAGES: Final = ((6, 2.0, 2.0), (2, 2.0, 10.0), (6, 10.0, 10.0), (2, 10.0, 2.0), (12, 2.0, 2.0))
"""Stages as minutes, and requests per second at the beginning and at the end."""
PROMPT_TOKENS: Final = (500, 4_000)
OUTPUT_TOKENS: Final = (100, 500)
"""Least and most tokens; all lengths between are equally likely."""
PROMISE: Final = ScenePromise(ttft_seconds=2.0, itl_seconds=0.15)
WINDOW_SECONDS: Final = 20.0
POOLS: Final = {Role.PREFILL: ("prefill", "#d9822b"), Role.DECODE: ("decode", "#2b6cb0")}


def trace() -> Trace:
    """Poisson arrivals of `STAGES`."""
    draw, requests, began = random.Random(7), [], 0.0  # noqa: S311
    for minutes, first, last in STAGES:
        at = began
        while (at := at + draw.expovariate(max(first, last))) < began + 60 * minutes:
            rate = first + (last - first) * (at - began) / (60 * minutes)
            if draw.random() * max(first, last) < rate:
                lengths = draw.randint(*PROMPT_TOKENS), draw.randint(*OUTPUT_TOKENS)
                requests.append(TraceRequest(at, *lengths))
        began += 60 * minutes
    return trace_of("burst", requests)


def draw(trail: Trail, path: Path) -> None:
    """Four panels over one axis of minutes."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.hashsalt": "burst", "font.size": 9.0}):
        figure = Figure(figsize=(9, 5.6), layout="constrained")
        FigureCanvasSVG(figure)
        rate, queue, engines, ttft = figure.subplots(
            4, 1, sharex=True, height_ratios=(1, 1, 1.5, 1)
        )
        _lines(rate, trail, _rate, "requests\nper second")
        _lines(queue, trail, _waiting, "waiting for\na first token")
        _engines(engines, trail)
        _lines(ttft, trail, _ttft, "TTFT p90\nin seconds")
        ttft.axhline(PROMISE.ttft_seconds, color="#b00020", linewidth=0.9, linestyle="--")
        ttft.annotate(
            f"promised: {PROMISE.ttft_seconds:g} s", (0.2, PROMISE.ttft_seconds), color="#b00020",
            xytext=(0, 3), textcoords="offset points",
        )  # fmt: skip
        ttft.set(xlabel="minutes")
        for axes in (rate, queue, engines, ttft):
            axes.set_ylim(bottom=0, top=axes.get_ylim()[1] * 1.12)
            axes.set_xlim(0, sum(stage[0] for stage in STAGES))
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})


def _lines(axes: Axes, trail: Trail, value: Callable[[Trail, float], float], label: str) -> None:
    times = _times()
    values = [value(trail, at) for at in times]
    axes.plot([at / 60 for at in times], values, color="#333333", linewidth=1.4)
    axes.fill_between([at / 60 for at in times], values, color="#333333", alpha=0.08)
    axes.set_ylabel(label)


def _engines(axes: Axes, trail: Trail) -> None:
    end = 60.0 * sum(stage[0] for stage in STAGES)
    for role, (name, color) in POOLS.items():
        changes = [change for change in trail.changes if change.role is role]
        times = [0.0, *(change.seconds for change in changes), end]
        first = changes[0].before if changes else AZURE.first_replicas
        counts = [first, *(change.after for change in changes)]
        minutes = [at / 60 for at in times]
        axes.step(
            minutes, [*counts, counts[-1]], where="post", color=color, label=name, linewidth=2
        )
    axes.set_ylabel("engines asked for")
    axes.legend(frameon=False, loc="upper right")


def _times() -> Sequence[float]:
    return [5.0 * step for step in range(12 * sum(stage[0] for stage in STAGES) + 1)]


def _rate(trail: Trail, at: float) -> float:
    arrivals = [work.arrival_seconds for work in trail.works]
    since = max(0.0, at - WINDOW_SECONDS)
    count = bisect_right(arrivals, at) - bisect_right(arrivals, since)
    return count / max(1.0, at - since)


def _waiting(trail: Trail, at: float) -> float:
    return sum(work.arrival_seconds <= at < work.first_token_seconds for work in trail.works)


def _ttft(trail: Trail, at: float) -> float:
    since = at - WINDOW_SECONDS
    lately = [w for w in trail.works if since < w.first_token_seconds <= at]
    times = [work.first_token_seconds - work.arrival_seconds for work in lately]
    return spread(times).p90


def main() -> None:
    """Replays and draws."""
    constants = replace(AZURE, promise=PROMISE)
    scene = Scene(trace(), constants, tuple(POOLS))
    ((candidate,),) = POLICIES["ours"](scene)
    draw(play(scene, candidate), FILE)


if __name__ == "__main__":
    main()
