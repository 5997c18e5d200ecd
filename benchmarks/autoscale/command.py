"""The command: every scene is measured, a table and the targets are printed, pictures written."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Final

from sluice_simulator.autoscale import plot
from sluice_simulator.autoscale import table as figures
from sluice_simulator.autoscale.grids import POLICIES, Candidate, Scene
from sluice_simulator.autoscale.policy_comparison import OURS

from benchmarks.autoscale import plans, report, targets
from benchmarks.autoscale.measure import BOOT_SECONDS, Result, measure, ours_alone
from benchmarks.autoscale.scenes import HALVES, scenes

PICTURES: Final = Path(__file__).parents[2] / "docs" / "pictures" / "scaling"
DRAWN: Final = (OURS, *targets.TUNED, "static", plans.POLICY)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = _parser()
    options = parser.parse_args(arguments)
    began, by_name = time.monotonic(), dict(scenes(options.traces, options.only, options.half))
    if not by_name:
        parser.error(f"--only: no scene has {options.only!r} in its name")
    if options.ours:
        with ProcessPoolExecutor(options.jobs) as pool:
            print(*report.ours_table(ours_alone(by_name, pool)), sep="\n")
        return
    with ProcessPoolExecutor(options.jobs) as pool:
        results = measure(by_name, options.climb, pool)
        singles = _singles(results)
        options.plots.mkdir(parents=True, exist_ok=True)
        usual = [result for result in results if result.boot_seconds == BOOT_SECONDS]
        drawings = [_drawing(options.plots, result, singles) for result in usual]
        list(pool.map(_draw, *zip(*drawings, strict=True)))
    print(*report.table(results), "", *(report.settings(usual) if singles else ()), sep="\n")
    print("\nTargets:\n", *targets.verdicts(results, singles), sep="\n")
    print(f"\n{time.monotonic() - began:.0f} s; pictures: {options.plots}")
    if options.json:
        options.json.write_text("".join(f"{line}\n" for line in _json_lines(results)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscale", description=__doc__)
    parser.add_argument("--traces", type=Path, required=True, help="with azure2023 and mooncake")
    parser.add_argument("--only", default="", help="scenes whose names have this in them")
    parser.add_argument("--half", choices=HALVES, help="scenes to choose by, or to judge by")
    parser.add_argument("--ours", action="store_true", help="our rule alone, in minutes")
    parser.add_argument("--plots", type=Path, default=PICTURES, help="folder (%(default)s)")
    parser.add_argument("--climb", type=float, help="make plans cheaper: CPU seconds for each")
    parser.add_argument("--json", type=Path, help="a file for every figure, one line a policy")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes (%(default)s)")
    return parser


def _singles(results: Sequence[Result]) -> Sequence[targets.SingleSetting]:
    usual = [result for result in results if result.boot_seconds == BOOT_SECONDS]
    if not any(len(result.fair.scene.roles) == 1 for result in usual):
        return ()
    return [targets.single_setting(policy, usual) for policy in targets.TUNED]


Drawing = tuple[Path, Scene, Sequence[tuple[str, Candidate]]]


def _drawing(folder: Path, result: Result, singles: Sequence[targets.SingleSetting]) -> Drawing:
    """HPA and KEDA with their single settings, in two pools as tuned for the scene."""
    scene = result.fair.scene
    candidates = {policy: result.rows[policy].candidate for policy in DRAWN}
    if len(scene.roles) == 1:
        for single in singles:
            candidates[single.policy] = _candidate(scene, single.policy, single.label)
    return folder / f"{result.name}.svg", scene, tuple(candidates.items())


def _candidate(scene: Scene, policy: str, label: str) -> Candidate:
    ladders = POLICIES[policy](scene)
    return next(each for ladder in ladders for each in ladder if each.label == label)


def _draw(path: Path, scene: Scene, candidates: Sequence[tuple[str, Candidate]]) -> None:
    replays = [plot.played(scene, policy, candidate) for policy, candidate in candidates]
    plot.draw(path, report.title(path.stem), scene, replays)


def _json_lines(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        scene = {"scene": result.name, "boot_seconds": result.boot_seconds}
        for line in figures.json_lines(result.fair.scene, list(result.rows.values())):
            yield json.dumps(scene | json.loads(line))
