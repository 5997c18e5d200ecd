"""`sluice autoscale replay`: a trace, policies that size a fleet for it, a table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sluice_contract.cluster.labels import Role

from sluice_simulator.autoscale import plot, rerun, table
from sluice_simulator.autoscale.constants import AZURE, MOONCAKE, Constants, QueueTargets
from sluice_simulator.autoscale.grids import POLICIES, Scene
from sluice_simulator.autoscale.policy_comparison import Replayed, contest, most_replays
from sluice_simulator.autoscale.shapes import FORMS, RAMPS, formed, ramp, ramp_constants
from sluice_simulator.errors import SimulatorError, UnusableConfigError
from sluice_simulator.plot import check_plot
from sluice_simulator.traces.read import read_trace
from sluice_simulator.traces.request import Trace, at_rate, window

UNUSABLE: Final = 2
TEXT: Final = "text"
JSON: Final = "json"
POOLS: Final[Mapping[str, Sequence[Role]]] = {
    "mixed": (Role.MIXED,),
    "two": (Role.PREFILL, Role.DECODE),
}
FLEETS: Final[Mapping[str, Constants]] = {"azure": AZURE, "mooncake": MOONCAKE}
ALL: Final = "all"
BAR_CELLS: Final = 32


def main(arguments: Sequence[str] | None = None, prog: str = "sluice autoscale replay") -> int:
    """The command. 0: done; 2: something it was given cannot be used."""
    options = _parser(prog).parse_args(arguments)
    try:
        if options.journal:
            return _rerun(options)
        if options.plot:
            check_plot(options.plot)
        names = _policies(options.policy)
        scene = scene_of(options)
    except SimulatorError as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    with replay_bar(scene, names, is_shown=options.output == TEXT) as replayed:
        rows = contest(scene, names, options.jobs, replayed)
    if options.output == JSON:
        print("\n".join(table.json_lines(scene, rows)))
    else:
        print(table.headline(scene), table.table(rows), sep="\n\n")
    if options.plot:
        replays = [plot.played(scene, row.policy, row.candidate) for row in rows]
        plot.draw(options.plot, scene.trace.name, scene, replays)
    return 0


@contextmanager
def replay_bar(
    scene: Scene, names: Sequence[str], is_shown: bool, console: Console | None = None
) -> Iterator[Replayed | None]:
    """Shows a bar of replays on standard error, if that is a terminal; it is gone at the end.
    `console`: where it is drawn instead."""
    console = console or Console(stderr=True)
    if not (is_shown and console.is_terminal):
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(BAR_CELLS, complete_style="green", finished_style="green"),
        TextColumn("{task.completed} of at most {task.total} replays"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        total = sum(most_replays(scene, name) for name in names)
        task = progress.add_task(names[0], total=total)

        def replayed(name: str, count: int) -> None:
            progress.update(task, description=name, advance=count)

        yield replayed


def _rerun(options: argparse.Namespace) -> int:
    runs = rerun.rerun(rerun.read(options.journal))
    print(rerun.as_json(runs) if options.output == JSON else rerun.as_text(runs))
    return 0


def scene_of(options: argparse.Namespace) -> Scene:
    """The trace and the constants from the options."""
    trace, constants = _trace(options)
    cut = at_rate(window(trace, options.start, options.seconds), options.rate)
    if not cut.requests:
        raise UnusableConfigError(
            f"--start {options.start:g}: no request of {trace.name} is in there; "
            f"allowed: a part of its {trace.seconds:.0f} s"
        )
    if options.form:
        cut = formed(cut, options.form)
    constants = replace(
        constants,
        boot_seconds=options.boot,
        chunk_tokens=options.chunk,
        engines_move=options.engines_move,
        gpu_budget=options.gpu_budget,
        max_replicas=options.max_replicas,
        targets=_targets(options),
    )
    return Scene(cut, constants, POOLS[options.pools])


def _trace(options: argparse.Namespace) -> tuple[Trace, Constants]:
    if options.ramp:
        return ramp(options.ramp, options.seed), ramp_constants(options.ramp, AZURE)
    return read_trace(options.trace), FLEETS[options.fleet]


def _targets(options: argparse.Namespace) -> QueueTargets:
    if options.decode_queue and Role.DECODE not in POOLS[options.pools]:
        raise UnusableConfigError(
            f"--decode-queue: {options.decode_queue} is not allowed; allowed: with --pools two, as "
            "in a mixed pool requests wait for their prompt alone, which is --prefill-queue"
        )
    return QueueTargets(options.queue_seconds, options.prefill_queue, options.decode_queue)


def _policies(text: str) -> Sequence[str]:
    names = list(POLICIES) if text == ALL else text.split(",")
    for name in names:
        if name not in POLICIES:
            allowed = ", ".join([*POLICIES, ALL])
            raise UnusableConfigError(f"--policy: {name!r} is not allowed; allowed: {allowed}")
    return names


def _parser(prog: str) -> argparse.ArgumentParser:
    text = "Replay a trace on simulated fleets whose size a policy decides."
    parser = argparse.ArgumentParser(prog=prog, description=text)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="Mooncake .jsonl or Azure .csv")
    source.add_argument("--ramp", choices=RAMPS, help="stages of requests that are alike instead")
    source.add_argument("--journal", type=Path, help="of `sluice autoscale history`: decide again")
    parser.add_argument("--seed", type=int, default=0, help="of a ramp (%(default)s)")
    parser.add_argument("--policy", default=ALL, help="one or more, with commas; all (%(default)s)")
    parser.add_argument("--form", choices=FORMS, help="the same requests at other times")
    parser.add_argument("--pools", choices=POOLS, default="mixed", help="default: %(default)s")
    parser.add_argument(
        "--fleet", choices=FLEETS, default="azure", help="engine and promise (%(default)s)"
    )
    _add_limits(parser)
    _add_targets(parser)
    parser.add_argument("--start", type=float, default=0.0, help="skip the first seconds")
    parser.add_argument("--seconds", type=_positive, help="length of the part to replay")
    parser.add_argument("--rate", type=_positive, default=1.0, help="arrivals so much faster")
    parser.add_argument("--jobs", type=_count, default=1, help="processes (%(default)s)")
    parser.add_argument("--plot", type=Path, help="also draw a picture: FILE.png or FILE.svg")
    parser.add_argument("-o", "--output", choices=(TEXT, JSON), default=TEXT)
    return parser


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--chunk", type=_count, default=AZURE.chunk_tokens, help="tokens a step (%(default)s)"
    )
    parser.add_argument(
        "--boot", type=_positive, default=AZURE.boot_seconds, help="seconds (%(default)g)"
    )
    parser.add_argument(
        "--max-replicas", type=_count, default=AZURE.max_replicas, help="of a pool (%(default)s)"
    )
    parser.add_argument("--gpu-budget", type=_count, help="GPUs of all pods; one an engine")
    parser.add_argument(
        "--engines-move", action="store_true", help="ours, two pools: engines may change their role"
    )


def _add_targets(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `spec.autoscaling.target`."""
    parser.add_argument(
        "--queue-seconds", type=_positive, help="of ours, in each engine (by default: half of TTFT)"
    )
    parser.add_argument(
        "--prefill-queue", type=_count, help="of ours: requests that wait for prompts, an engine"
    )
    parser.add_argument(
        "--decode-queue", type=_count, help="of ours: requests that wait for decode, an engine"
    )


def _positive(word: str) -> float:
    value = float(word)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _count(word: str) -> int:
    value = int(word)
    if value < 1:
        raise ValueError
    return value


_positive.__name__ = "number above 0"
_count.__name__ = "whole number of at least 1"
