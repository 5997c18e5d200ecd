"""What a simulated hour costs: CPU seconds of one core, exact and in fleet mode.

Of the trace given (`--trace conversation_trace.jsonl`: Mooncake's conversations), or of a synthetic
hour of the same size. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from sluice_simulator.configuration import read_config, settings_for
from sluice_simulator.costs import cost_named
from sluice_simulator.device import SimulatedDevice
from sluice_simulator.replay import Options, Replay
from sluice_simulator.report import Summary, summarise
from sluice_simulator.traces.read import read_trace
from sluice_simulator.traces.request import Trace, at_rate
from sluice_simulator.traces.synthetic import Workload, synthesise

HOUR = Workload("an hour", 12_000, 3.4, (100, 16_000), (20, 660), prefixes=300, prefix_blocks=8)


def measure(trace: Trace, *, fleet: bool) -> tuple[Summary, float]:
    """The run, and the CPU seconds that it took."""
    cost = cost_named("h200-llama3-8b")
    settings = settings_for(read_config(None), cost, "fcfs")
    began = time.process_time()
    device = SimulatedDevice(trace.requests, cost)
    replayed = Replay(trace, settings, device, Options(), device if fleet else None).run()
    return summarise(replayed.record, replayed.status), time.process_time() - began


def report(mode: str, run: Summary, cpu_seconds: float, exact: Summary | None = None) -> None:
    figures = {
        "figure": f"simulator.{mode}",
        "value": round(cpu_seconds, 2),
        "unit": "CPU s",
        "simulated_seconds": round(run.seconds),
        "requests": run.finished + run.failed,
        "steps": sum(run.steps.values()),
        "ttft_p50": round(run.ttft.p50, 4),
        "itl_p50": round(run.itl.p50, 5),
        "output_rate": round(run.output_rate, 1),
    }
    if exact:
        pairs = [(run.output_rate, exact.output_rate)]
        for one, other in ((run.ttft, exact.ttft), (run.itl, exact.itl), (run.e2e, exact.e2e)):
            pairs += [(one.p50, other.p50), (one.p90, other.p90), (one.p99, other.p99)]
        apart = max(abs(found / wanted - 1) for found, wanted in pairs)
        figures["max_difference_percent"] = round(100 * apart, 2)
    print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--trace", type=Path, help="default: a synthetic hour")
    parser.add_argument("--rate", type=float, default=1.0)
    parser.add_argument("--fleet-only", action="store_true")
    options = parser.parse_args()
    trace = read_trace(options.trace) if options.trace else synthesise(HOUR, 0)
    trace, exact = at_rate(trace, options.rate), None
    if not options.fleet_only:
        exact, cpu_seconds = measure(trace, fleet=False)
        report("exact", exact, cpu_seconds)
    fleet, cpu_seconds = measure(trace, fleet=True)
    report("fleet", fleet, cpu_seconds, exact)


if __name__ == "__main__":
    main()
