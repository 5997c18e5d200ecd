"""`python -m sluice_simulator`, or `sluice simulate`: replays a trace on a simulated engine and
prints a table."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sluice_runtime.scheduler.settings import SchedulerSettings

from sluice_simulator import text
from sluice_simulator.configuration import policies_of, read_config, settings_for
from sluice_simulator.costs import Cost, cost_named, preset_names
from sluice_simulator.device import SimulatedDevice
from sluice_simulator.errors import SimulatorError, UnusableConfigError
from sluice_simulator.plot import check_plot, draw
from sluice_simulator.record import Record
from sluice_simulator.replay import Options, Replay
from sluice_simulator.report import Summary, summarise
from sluice_simulator.traces.read import read_trace
from sluice_simulator.traces.request import Trace, at_rate, window
from sluice_simulator.traces.synthetic import WORKLOADS, synthesise, tagged

FAILED: Final = 1
UNUSABLE: Final = 2
EXACT: Final = "exact"
FLEET: Final = "fleet"
TEXT: Final = "text"
JSON: Final = "json"


@dataclass(frozen=True)
class Run:
    """The run of one policy, and the time that the simulation took."""

    record: Record
    summary: Summary
    wall_seconds: float


@dataclass(frozen=True)
class Simulation:
    """All that is printed. `settings` are those of the first policy."""

    trace: Trace
    cost: Cost
    settings: SchedulerSettings
    overlap: bool
    mode: str
    runs: Mapping[str, Run]
    """Runs by policy."""


def main(arguments: Sequence[str] | None = None, prog: str = "sluice simulate") -> int:
    """The command; returns the exit code. 0: done; 1: in some run every request failed; 2: an input
    cannot be used."""
    options = _parser(prog).parse_args(arguments)
    try:
        simulation = _simulate(options)
    except SimulatorError as error:
        print(error, file=sys.stderr)
        return UNUSABLE
    show = _show_json if options.output == JSON else _show_text
    show(simulation)
    if options.plot:
        records = {name: run.record for name, run in simulation.runs.items()}
        draw(options.plot, f"{simulation.trace.name} on {simulation.cost.name}", records)
    return 0 if all(run.summary.finished for run in simulation.runs.values()) else FAILED


def _simulate(options: argparse.Namespace) -> Simulation:
    """Runs the simulations, after checking all input."""
    if options.plot:
        check_plot(options.plot)
    trace, cost, config = _trace(options), cost_named(options.cost), read_config(options.config)
    names = policies_of(options.policy, config)
    try:
        settings = {name: settings_for(config, cost, name) for name in names}
    except UnusableConfigError as error:
        raise UnusableConfigError(
            f"{options.config}: {error}" if options.config else str(error)
        ) from None
    how, overlap, runs = Options(max_tokens=options.max_tokens), bool(config.overlap), {}
    for name in names:
        device = SimulatedDevice(trace.requests, cost, overlap=overlap)
        leaper = device if options.mode == FLEET else None
        runs[name] = _run(Replay(trace, settings[name], device, how, leaper))
    return Simulation(trace, cost, settings[names[0]], overlap, options.mode, runs)


def _trace(options: argparse.Namespace) -> Trace:
    if options.trace:
        trace = read_trace(options.trace)
    else:
        trace = synthesise(WORKLOADS[options.workload], options.seed)
    cut = window(trace, options.start, options.seconds)
    if not cut.requests:
        length = "" if options.seconds is None else f", --seconds {options.seconds:g}"
        raise UnusableConfigError(
            f"--start {options.start:g}{length}: no request of {trace.name} is in there; "
            f"allowed: a part of its {trace.seconds:.0f} s"
        )
    return tagged(at_rate(cut, options.rate), options.tenants, options.urgent, options.seed)


def _run(replay: Replay) -> Run:
    began = time.perf_counter()
    replayed = replay.run()
    summary = summarise(replayed.record, replayed.status)
    return Run(replayed.record, summary, time.perf_counter() - began)


def _show_text(simulation: Simulation) -> None:
    runs = {name: run.summary for name, run in simulation.runs.items()}
    print(text.headline(simulation.trace, simulation.settings, simulation.cost))
    wall = sum(run.wall_seconds for run in simulation.runs.values())
    simulated = text.duration(sum(run.seconds for run in runs.values()))
    loop = "overlapped loop · " if simulation.overlap else ""
    took = f"{simulated} simulated in {text.duration(wall)}"
    print(f"{', '.join(runs)} · {loop}{simulation.mode} mode · {took}\n")
    if len(runs) == 1:
        print(text.one_run(*runs.values()))
    else:
        print(text.comparison("policy", runs))


def _show_json(simulation: Simulation) -> None:
    facts = {"trace": simulation.trace.name, "cost": simulation.cost.name, "mode": simulation.mode}
    for name, run in simulation.runs.items():
        figures = run.summary.as_json() | {"wall_seconds": run.wall_seconds}
        print(json.dumps(facts | {"policy": name} | figures))


def _positive(word: str) -> float:
    value = float(word)
    if not 0 < value < float("inf"):
        raise ValueError
    return value


def _at_least_one(word: str) -> int:
    value = int(word)
    if value < 1:
        raise ValueError
    return value


def _count(word: str) -> int:
    value = int(word)
    if value < 0:
        raise ValueError
    return value


def _share(word: str) -> float:
    value = float(word)
    if not 0 <= value <= 1:
        raise ValueError
    return value


_count.__name__ = "whole number"
_share.__name__ = "share from 0 to 1"
_positive.__name__ = "number above 0"
_at_least_one.__name__ = "whole number of at least 1"


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Replay a trace on a simulated engine.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--trace", type=Path, help="Mooncake .jsonl or Azure .csv")
    source.add_argument("--workload", choices=WORKLOADS, help="a synthetic trace instead")
    parser.add_argument("--config", type=Path, help="engine.json; default: all defaults")
    costs = ", ".join(preset_names())
    parser.add_argument(
        "--cost", default="h200-llama3-8b", help=f"cost model: {costs}, or a file (%(default)s)"
    )
    parser.add_argument("--policy", help="one or more, with commas; all; default: the configured")
    parser.add_argument(
        "--mode", choices=(EXACT, FLEET), default=EXACT, help="fleet takes equal steps at once"
    )
    _add_cut(parser)
    parser.add_argument("--plot", type=Path, help="also draw a picture: FILE.png or FILE.svg")
    parser.add_argument(
        "-o", "--output", choices=(TEXT, JSON), default=TEXT, help="default: %(default)s"
    )
    return parser


def _add_cut(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, help="of a synthetic trace, of tags")
    parser.add_argument(
        "--tenants", type=_count, default=0, help="give requests routing keys of so many tenants"
    )
    parser.add_argument(
        "--urgent", type=_share, default=0.0, help="give this share of the requests priority 100"
    )
    parser.add_argument("--rate", type=_positive, default=1.0, help="arrivals so much faster")
    parser.add_argument("--start", type=float, default=0.0, help="skip the first seconds")
    parser.add_argument("--seconds", type=_positive, help="length of the part to replay")
    parser.add_argument(
        "--max-tokens", type=_at_least_one, default=2048, help="what clients ask for (%(default)s)"
    )
