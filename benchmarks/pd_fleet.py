"""Two pools compared with the same GPUs mixed, simulated at the size of a fleet.

Cost models are the devices' limits at 81 % for Llama-3-8B in bfloat16, like the preset of the H200;
of unlike GPUs each has its own. A trace is sped up. The result is the highest speed at which a
promise is kept: of the first token and of the mean time between tokens. Prints one JSON line a run,
and one table.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import Accelerator
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.settings import SchedulerSettings, StepTarget
from sluice_simulator import text
from sluice_simulator.costs import Coefficients, Cost
from sluice_simulator.fleet import FleetReplay, FleetReplayed, Pool
from sluice_simulator.handover import Network
from sluice_simulator.percentiles import Spread, spread
from sluice_simulator.record import Timeline
from sluice_simulator.replay import Options
from sluice_simulator.traces.read import read_trace
from sluice_simulator.traces.request import Trace, at_rate, window

REACHED = 0.81
"""Share of a device's limits that is reached."""
GFLOP, PAIR_FLOP = 15.0e9, 0.52e6
"""FLOP of a token, and of a pair of tokens that attend."""
WEIGHT_BYTES, KV_BYTES = 15.0e9, 131_072
"""Bytes of all weights, and of the KV cache of one token."""
PAGE = 16
CONTEXT = 131_072
TPOT_SECONDS = 0.05
GOOD_SHARE = 0.9
"""Share of the requests that must keep the promise."""
UNLIKE_FASTER = 5.0
"""First speed to try on the unlike GPUs, as a multiple of that of 4 A100."""
GRID, GRID_STEP = 20, 1.15
"""Number of speeds in the grid that is searched by halving, and their ratio."""


def cost(name: str, tflops: float, terabytes: float, pool_tokens: int) -> Cost:
    """Cost of a GPU with these TFLOP/s in bfloat16 and TB/s of memory."""
    rate, memory = tflops * 1e12 * REACHED, terabytes * 1e12 * REACHED
    return Cost(
        name=name,
        source=f"limits of {tflops:g} TFLOP/s and {terabytes:g} TB/s at {REACHED:.0%}",
        accelerator=Accelerator(),
        context_length=CONTEXT,
        kv_pool_tokens=pool_tokens,
        coefficients=Coefficients(
            step=0.0005,
            weights=WEIGHT_BYTES / memory,
            token=GFLOP / rate,
            row=GFLOP / rate,
            product=PAIR_FLOP / rate,
            context=KV_BYTES / memory,
        ),
    )


A100_40 = cost("A100-40", 312, 1.555, 140_000)
A100_80 = cost("A100-80", 312, 2.039, 400_000)
H100 = cost("H100", 989, 3.35, 400_000)


@dataclass(frozen=True)
class Setup:
    """Engines in one arrangement."""

    fleet: str
    name: str
    pools: tuple[Pool, ...]
    bytes_per_second: float


def settings(device: Cost, chunk: int, *, target: bool = False) -> SchedulerSettings:
    """Settings of an engine. `target`: chunks are cut so that steps keep the promised time between
    tokens."""
    return SchedulerSettings(
        limits=Limits(device.context_length, device.kv_pool_tokens),
        page_size=PAGE,
        chunk_size=chunk,
        max_prefill_tokens=16_384,
        min_prefill_tokens=PAGE,
        max_running_requests=256,
        max_queued_requests=100_000,
        mixed=True,
        target=StepTarget(TPOT_SECONDS, 0.95, 512) if target else None,
    )


def pool(role: Role, replicas: int, device: Cost, chunk: int, *, target: bool = False) -> Pool:
    return Pool(role, replicas, device, settings(device, chunk, target=target))


def setups() -> Iterator[Setup]:
    """Arrangements of engines. Links: NVLink within a host of 4 A100, 300 GB/s each way; between
    hosts 100 Gb/s for each GPU, or for the host, which is a quarter for each prefill engine."""
    nvlink, network = 300e9, 12.5e9
    for name, target in (("4 mixed", False), ("4 mixed, itl 50 ms", True)):
        mixed = pool(Role.MIXED, 4, A100_40, 4_096, target=target)
        yield Setup("4 A100-40", name, (mixed,), nvlink)
    for prefill in (1, 2, 3):
        pools = (
            pool(Role.PREFILL, prefill, A100_40, 4_096),
            pool(Role.DECODE, 4 - prefill, A100_40, 4_096),
        )
        yield Setup("4 A100-40", f"{prefill}P + {4 - prefill}D", pools, nvlink)
    unlike = "4 H100 + 8 A100-80"
    for name, target in (("12 mixed", False), ("12 mixed, itl 50 ms", True)):
        h100 = pool(Role.MIXED, 4, H100, 8_192, target=target)
        a100 = pool(Role.MIXED, 8, A100_80, 8_192, target=target)
        yield Setup(unlike, name, (h100, a100), network)
    pools = (pool(Role.PREFILL, 4, H100, 8_192), pool(Role.DECODE, 8, A100_80, 8_192))
    yield Setup(unlike, "4P H100 + 8D A100", pools, network)
    yield Setup(unlike, "the same, 100 Gb/s in all", pools, network / 4)


@dataclass(frozen=True)
class Load:
    """A trace and its promise, to be sped up until the promise is broken."""

    trace: Trace
    ttft_seconds: float
    """Promised seconds to the first token."""
    slowest: float
    """First speed to try, on 4 A100."""
    seconds: float
    """Seconds of a run."""

    def at(self, speed: float) -> Trace:
        return at_rate(window(self.trace, 0.0, self.seconds * speed), speed)


@dataclass(frozen=True)
class Outcome:
    """Results of one run."""

    rate: float
    """Requests per second."""
    served: int
    good: float
    """Share of the requests that kept the promise."""
    ttft: Spread
    itl: Spread
    output_rate: float
    hidden: float
    hand_over: Spread


def outcome(trace: Trace, ttft_seconds: float, replayed: FleetReplayed) -> Outcome:
    record, seen = replayed.record, replayed.hand_overs
    lines = [line for line in record.timelines if line.error is None and line.tokens]
    return Outcome(
        rate=len(trace.requests) / trace.seconds,
        served=len(lines),
        good=sum(_good(line, ttft_seconds) for line in lines) / len(record.timelines),
        ttft=spread([_ttft(line) for line in lines]),
        itl=spread(record.gaps.values, record.gaps.counts),
        output_rate=sum(line.tokens for line in lines) / record.ended_seconds,
        hidden=seen.hidden_bytes / seen.read_bytes if seen.read_bytes else 0.0,
        hand_over=spread(seen.seconds),
    )


def _ttft(line: Timeline) -> float:
    assert line.first_token_seconds is not None
    return line.first_token_seconds - line.request.arrival_seconds


def _good(line: Timeline, ttft_seconds: float) -> bool:
    assert line.first_token_seconds is not None
    between = (line.last_token_seconds - line.first_token_seconds) / max(1, line.tokens - 1)
    return _ttft(line) <= ttft_seconds and between <= TPOT_SECONDS


def play(setup: Setup, load: Load, speed: float) -> Outcome:
    network, trace = Network(setup.bytes_per_second, 0.0002, PAGE * KV_BYTES), load.at(speed)
    return outcome(
        trace, load.ttft_seconds, FleetReplay(trace, setup.pools, network, Options()).run()
    )


def goodput(setup: Setup, load: Load) -> tuple[float, Outcome]:
    """The highest speed of the grid at which the promise is kept, or else the lowest of the
    grid."""
    first = load.slowest * (1.0 if setup.fleet.startswith("4 A100") else UNLIKE_FASTER)
    speeds = [first * GRID_STEP**number for number in range(GRID)]
    best, low, high = None, 0, GRID
    while low < high:
        middle = (low + high) // 2
        found = play(setup, load, speeds[middle])
        if found.good >= GOOD_SHARE:
            best, low = (speeds[middle], found), middle + 1
        else:
            high = middle
    return best or (first, play(setup, load, first))


def loads(traces: Path, azure_seconds: float) -> Iterator[Load]:
    azure = read_trace(traces / "azure2023/AzureLLMInferenceTrace_conv.csv")
    yield Load(azure, ttft_seconds=1.0, slowest=1.0, seconds=azure_seconds)
    mooncake = read_trace(traces / "mooncake/conversation_trace.jsonl")
    yield Load(mooncake, ttft_seconds=10.0, slowest=0.12, seconds=90.0)


HEAD = ("workload", "fleet", "as", "requests/s", "of mixed", "TTFT p50", "p99", "ITL p50", "p99",
        "tok/s out", "hidden", "hand-over p50")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--traces", type=Path, required=True, help="with azure2023 and mooncake")
    parser.add_argument("--azure-seconds", type=float, default=30.0, help="length of its runs")
    parser.add_argument("--only", default="", help="part of a trace's name")
    parser.add_argument("--fleet", default="", help="part of a fleet's name")
    options = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    for load in loads(options.traces, options.azure_seconds):
        for setup in setups():
            if options.only not in load.trace.name or options.fleet not in setup.fleet:
                continue
            began = time.perf_counter()
            speed, found = goodput(setup, load)
            rows.append(row(load.trace, setup, found, rows))
            report(load.trace, setup, speed, found, time.perf_counter() - began)
    print("\n" + text.table([HEAD, *rows]))


def row(
    trace: Trace, setup: Setup, found: Outcome, rows: Sequence[tuple[str, ...]]
) -> tuple[str, ...]:
    mixed = next((float(r[3]) for r in rows if r[:2] == (trace.name, setup.fleet)), found.rate)
    handed = found.hand_over.count > 0
    return (
        trace.name,
        setup.fleet,
        setup.name,
        f"{found.rate:.3g}",
        f"{found.rate / mixed:.2f}x",
        *map(text.duration, (found.ttft.p50, found.ttft.p99, found.itl.p50, found.itl.p99)),
        text.number(found.output_rate),
        f"{found.hidden:.0%}" if handed else "",
        text.duration(found.hand_over.p50) if handed else "",
    )


def report(trace: Trace, setup: Setup, speed: float, found: Outcome, seconds: float) -> None:
    line = {
        "bench": "pd",
        "figure": "fleet.requests_per_second_kept",
        "value": round(found.rate, 3),
        "workload": trace.name,
        "fleet": setup.fleet,
        "as": setup.name,
        "speed": round(speed, 3),
        "good_share": round(found.good, 3),
        "ttft_p50": round(found.ttft.p50, 4),
        "ttft_p99": round(found.ttft.p99, 4),
        "itl_p50": round(found.itl.p50, 5),
        "itl_p99": round(found.itl.p99, 5),
        "output_tokens_per_second": round(found.output_rate, 1),
        "hidden_share": round(found.hidden, 3),
        "hand_over_p50": round(found.hand_over.p50, 4),
        "simulated_in_seconds": round(seconds, 1),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
