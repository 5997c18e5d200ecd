"""When continuous batching, chunks, mixed batches, overlap and the prefix cache pay, and when not.

Each pair of variants runs the same workload twice: simulated at the size of a GPU, and for real on
the 33.6 M-parameter model of "CPU serving". The real steps are computed and timed on a virtual
clock. They are also fitted by a cost, with which the measured run is simulated again for
comparison. Overlap runs in the engine's own loop, by the wall clock. Prints one JSON line a run,
and one table.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from sluice_contract.config.engine import EngineConfig
from sluice_runtime.scheduler.batch import StepShape
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_simulator import text
from sluice_simulator.costs import Cost, cost_named
from sluice_simulator.device import Device, SimulatedDevice
from sluice_simulator.replay import Options, Replay
from sluice_simulator.report import Summary, summarise

from benchmarks.batching_workloads import (
    STATIC,
    Comparison,
    Variant,
    at_size,
    in_the_loop,
    on_this_machine,
    padding,
)

GPU = "h200-llama3-8b"
PARTS = ("simulated", "measured", "overlapped")


def report(place: str, comparison: Comparison, runs: dict[str, Summary]) -> None:
    first = next(iter(runs.values()))
    for name, run in runs.items():
        facts = {
            "figure": "batching.output_rate",
            "value": round(run.output_rate, 2),
            "unit": "tokens/s",
            "where": place,
            "workload": comparison.workload.name,
            "variant": name,
            "ratio_to_first": round(run.output_rate / first.output_rate, 3),
            "ttft_p99": round(run.ttft.p99, 4),
            "itl_p99": round(run.itl.p99, 5),
            "itl_worst": round(run.itl.worst, 5),
        }
        print(json.dumps(facts), flush=True)


HEAD = ("where", "workload", "variant", "TTFT p50", "p99", "ITL p50", "p99", "worst", "tok/s out",
        "of the first", "padding")  # fmt: skip


def rows_of(place: str, comparison: Comparison, runs: dict[str, Summary]) -> list[tuple[str, ...]]:
    first = next(iter(runs.values()))
    times = [
        (run.ttft.p50, run.ttft.p99, run.itl.p50, run.itl.p99, run.itl.worst)
        for run in runs.values()
    ]
    return [
        (
            place,
            comparison.workload.name,
            name,
            *map(text.duration, shown),
            text.number(run.output_rate),
            f"{run.output_rate / first.output_rate:.2f}x",
            f"{_padding(comparison, name):.0%}",
        )
        for (name, run), shown in zip(runs.items(), times, strict=True)
    ]


def _padding(comparison: Comparison, name: str) -> float:
    if name != STATIC.name:
        return 0.0
    return padding(comparison.workload, comparison.settings.get("max_running_requests", 256))


def simulate(comparison: Comparison, base: SchedulerSettings, cost: Cost) -> dict[str, Summary]:
    runs = {}
    for variant in comparison.variants:
        requests = comparison.workload.requests
        device = SimulatedDevice(requests, cost, overlap=variant.overlap)
        runs[variant.name] = run(comparison, variant, base, device)
    return runs


def run(
    comparison: Comparison, variant: Variant, base: SchedulerSettings, device: Device
) -> Summary:
    settings = replace(base, **(comparison.settings | variant.settings))
    options = Options(static=variant.static, sample_seconds=0.05)
    replayed = Replay(comparison.workload, settings, device, options).run()
    return summarise(replayed.record, replayed.status)


def settings_on(cost: Cost, chunk_size: int) -> SchedulerSettings:
    return SchedulerSettings(
        limits=Limits(cost.context_length, cost.kv_pool_tokens),
        page_size=16,
        chunk_size=chunk_size,
        max_prefill_tokens=16_384,
        min_prefill_tokens=16,
        max_running_requests=256,
        max_queued_requests=100_000,
        mixed=True,
    )


def measured(
    folder: Path, clock: Callable[[], float], threads: int, write_cost: Path | None
) -> list[tuple[str, ...]]:
    """Runs each comparison on the model, then simulates it with the cost that fits all steps."""
    from sluice_runtime.engine.build import build_engine
    from sluice_runtime.engine.sizing.plan import resolved
    from sluice_runtime.model.files import resolve

    from benchmarks.measured_device import MeasuredDevice, fitted

    rows: list[tuple[str, ...]] = []
    every_step: list[tuple[StepShape, float]] = []
    config = resolved(config_of(folder, threads))
    files = resolve(config.model.uri)
    for comparison in on_this_machine():
        runs, steps = {}, []
        for variant in comparison.variants:
            engine = build_engine(config, files)
            device = MeasuredDevice(engine, comparison.workload.requests, clock)
            runs[variant.name] = run(comparison, variant, engine.settings, device)
            steps += device.steps
        every_step += steps
        cost = fitted("this machine", engine, steps)
        again = simulate(comparison, engine.settings, cost)
        for place, found in (("measured", runs), ("  simulated", again)):
            report(place.strip(), comparison, found)
            rows += rows_of(place, comparison, found)
    if write_cost:
        cost = fitted(write_cost.stem, engine, every_step)
        write_cost.write_text(json.dumps(cost.to_json_dict(), indent=2) + "\n")
    return rows


def overlapped(folder: Path, threads: int, turns: int = 5) -> list[tuple[str, ...]]:
    """The engine's loop with and without `overlap`, in turns; the median run of each."""
    from benchmarks.engine_loop import run_in_loop

    rows: list[tuple[str, ...]] = []
    for comparison in in_the_loop():
        runs: dict[str, list[Summary]] = {variant.name: [] for variant in comparison.variants}
        for _ in range(turns):
            for variant in comparison.variants:
                config = config_of(folder, threads, overlap=variant.overlap)
                runs[variant.name].append(run_in_loop(config, comparison.workload.requests))
        medians = {
            name: sorted(each, key=lambda run: run.output_rate)[turns // 2]
            for name, each in runs.items()
        }
        report("engine loop", comparison, medians)
        rows += rows_of("engine loop", comparison, medians)
    return rows


def config_of(folder: Path, threads: int, **settings: object) -> EngineConfig:
    keys = {"model": {"uri": str(folder)}, "kv_pool_tokens": 16_384, "threads": threads}
    return EngineConfig.model_validate(keys | settings)


def simulated() -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    cost = cost_named(GPU)
    for comparison in at_size():
        runs = simulate(comparison, settings_on(cost, 8_192), cost)
        report(GPU, comparison, runs)
        rows += rows_of(GPU, comparison, runs)
    return rows


def on_the_model(
    parts: set[str], cpu_clock: bool, write_cost: Path | None
) -> list[tuple[str, ...]]:
    from benchmarks.cpu_serving import write_model

    clock = time.process_time if cpu_clock else time.perf_counter
    threads = 1 if cpu_clock else os.cpu_count() or 1
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder)
        if "measured" in parts:
            rows += measured(folder, clock, threads, write_cost)
        if "overlapped" in parts and not cpu_clock:
            rows += overlapped(folder, threads)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument(
        "--cpu-clock",
        action="store_true",
        help="measure the process's CPU time, with one thread: for a machine shared with others; "
        "without overlap, which gains none of it",
    )
    parser.add_argument("--write-cost", type=Path, help="write what all measured steps fit")
    options = parser.parse_args(arguments)
    parts = {options.only} if options.only else set(PARTS)
    for_real = parts - {"simulated"}
    if for_real:
        from benchmarks.cpu_serving import as_an_engine_process

        as_an_engine_process("benchmarks.batching")
    rows = simulated() if "simulated" in parts else []
    if for_real:
        rows += on_the_model(for_real, options.cpu_clock, options.write_cost)
    print("\n" + text.table([HEAD, *rows]))


if __name__ == "__main__":
    main()
