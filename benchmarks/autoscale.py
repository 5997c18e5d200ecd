"""Replays of scaling: our `decide` beside the rules of others, on public traces and on ramps.

Every figure is of simulated fleets (`sluice_simulator.autoscale`), so it is the same on every
machine. Prints a table and one JSON line a policy for each scene.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale import table
from sluice_simulator.autoscale.command import POOLS, draw
from sluice_simulator.autoscale.constants import AZURE, GOAL, MOONCAKE, Constants
from sluice_simulator.autoscale.grids import POLICIES, Scene
from sluice_simulator.autoscale.policy_comparison import OURS, Row, contest
from sluice_simulator.autoscale.shapes import FORMS, RAMPS, formed, ramp, ramp_constants
from sluice_simulator.traces.read import read_trace
from sluice_simulator.traces.request import Trace

CONV: Final = "azure2023/AzureLLMInferenceTrace_conv.csv"
CODE: Final = "azure2023/AzureLLMInferenceTrace_code.csv"
MOON: Final = "mooncake/conversation_trace.jsonl"
SYNTHETIC: Final = "mooncake/synthetic_trace.jsonl"
GPU_BUDGET: Final = 48
"""Of two pools together."""
SHIFT: Final = "shift"
SPLIT_BUDGET: Final = 8
"""Of two pools whose split has to follow the load, as no split is enough for all of it."""
TUNED: Final = ("hpa", "keda-tuned")
SHORT_CHUNK: Final = 512
"""Tokens: with the usual 2,048 a prompt's chunk breaks what short answers are promised."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file of traces, and what is promised for it."""

    path: str
    constants: Constants
    forms: Sequence[str | None]


SOURCES: Final[Mapping[str, Source]] = {
    "azure-conv": Source(CONV, AZURE, (None, *FORMS)),
    "azure-code": Source(CODE, AZURE, (None,)),
    "azure-code-512": Source(CODE, replace(AZURE, chunk_tokens=SHORT_CHUNK), (None,)),
    "mooncake": Source(MOON, MOONCAKE, (None, *FORMS)),
    "mooncake-synthetic": Source(SYNTHETIC, MOONCAKE, (None,)),
}


def scenes(traces: Path) -> Iterator[tuple[str, Scene]]:
    """Every trace and form of it, then the ramps with one pool and with two."""
    for name, source in SOURCES.items():
        trace = read_trace(traces / source.path)
        for form in source.forms:
            yield f"{name}-{form}" if form else name, _scene(trace, source.constants, form)
    shifted = replace(ramp_constants(SHIFT, AZURE), gpu_budget=SPLIT_BUDGET)
    shifted = replace(shifted, max_replicas=SPLIT_BUDGET - 1)
    yield SHIFT, Scene(ramp(SHIFT), shifted, POOLS["two"])
    for name in (name for name in RAMPS if name != SHIFT):
        constants = ramp_constants(name, AZURE)
        yield name, Scene(ramp(name), constants, POOLS["mixed"])
        budgeted = replace(constants, gpu_budget=GPU_BUDGET)
        yield f"{name}-two-pools", Scene(ramp(name), budgeted, POOLS["two"])


def _scene(trace: Trace, constants: Constants, form: str | None) -> Scene:
    return Scene(formed(trace, form) if form else trace, constants, (Role.MIXED,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--traces", type=Path, required=True, help="with azure2023 and mooncake")
    parser.add_argument("--only", default="", help="scenes whose names have this in them")
    parser.add_argument("--policies", default=",".join(POLICIES), help="default: %(default)s")
    parser.add_argument("--plots", type=Path, help="folder for a picture of each scene")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (%(default)s)")
    options = parser.parse_args()
    by_scene = {}
    for name, scene in scenes(options.traces):
        if options.only not in name:
            continue
        rows = contest(scene, options.policies.split(","), options.jobs)
        print(f"{name} · {table.headline(scene)}\n\n{table.table(rows)}\n")
        print(*table.json_lines(scene, rows), sep="\n", end="\n\n", flush=True)
        if len(scene.roles) == 1:
            by_scene[name] = {row.policy: row for row in rows}
        if options.plots:
            draw(options.plots / f"{name}.svg", scene, rows)
    for policy in TUNED:
        print(*single_setting(policy, by_scene), sep="\n", flush=True)


def single_setting(policy: str, by_scene: Mapping[str, Mapping[str, Row]]) -> Iterator[str]:
    """The settings that keep the goal on most scenes of one pool, of those the cheapest first,
    beside ours."""
    known = {name: rows for name, rows in by_scene.items() if {policy, OURS} <= set(rows)}
    tried = {name: dict(rows[policy].tried) for name, rows in known.items()}
    labels = set.intersection(*(set(of_scene) for of_scene in tried.values())) if tried else ()

    def hours(label: str) -> float:
        """The geometric mean of its hours by ours."""
        ratios = (
            tried[name][label].replica_hours / rows[OURS].outcome.replica_hours
            for name, rows in known.items()
        )
        return math.exp(statistics.fmean(map(math.log, ratios)))

    def kept(label: str) -> int:
        return sum(tried[name][label].attainment >= GOAL for name in known)

    for label in sorted(labels, key=lambda label: (-kept(label), hours(label)))[:3]:
        figures = {"kept": kept(label), "scenes": len(known), "hours_by_ours": hours(label)}
        yield json.dumps({"policy": policy, "single_setting": label} | figures)


if __name__ == "__main__":
    main()
