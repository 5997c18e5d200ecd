"""A prompt of 16,384 tokens while 16 requests decode, Llama-3-8B's shape: fixed chunks of many
sizes compared with the chunk that is chosen for each step. Worst and 99th percentile of the gaps,
and the time to the prompt's first token."""

from __future__ import annotations

from typing import Any

from sluice_runtime.engine.build import Engine
from sluice_simulator.traces.request import TraceRequest

from benchmarks.engine_loop import recorded
from benchmarks.gpu.engines import at_once, check_served, engine, gaps, told, under
from benchmarks.turns import scaled

STREAMS, CONTEXT, ANSWER, LONG = map(scaled, (16, 512, 200, 16_384))
FIXED_CHUNKS = [max(64, scaled(chunk)) for chunk in (512, 1024, 2048, 4096, 8192)]
PROMISE_MILLISECONDS = 50
SHAPE, ROWS = "llama3-8b", {"max_running_requests": 32}


def measure(name: str, made: Engine) -> None:
    recorded(made, at_once([(CONTEXT, 32)] * STREAMS + [(LONG, 4)]), overlap=True)
    streams = [TraceRequest(0.0, CONTEXT, ANSWER) for _ in range(STREAMS)]
    record = recorded(made, [*streams, TraceRequest(0.5, LONG, 4)], overlap=True)
    check_served(record)
    long = record.timelines[-1]
    taken = (long.first_token_seconds or 0.0) - long.request.arrival_seconds
    told(f"interference.{name}.itl_p99", gaps(record).p99, "s", worst=round(gaps(record).worst, 4))
    told(f"interference.{name}.ttft", taken, "s")


def main() -> None:
    variants: dict[str, dict[str, Any]] = {
        "chosen": {"slo": {"itl_milliseconds": PROMISE_MILLISECONDS}},
        **{f"chunk-{chunk}": {"chunk_size": chunk} for chunk in FIXED_CHUNKS},
    }
    with engine(SHAPE, **ROWS, chunk_size=max(FIXED_CHUNKS)) as made:
        for name, settings in variants.items():
            measure(name, under(made, SHAPE, **ROWS, **settings))


if __name__ == "__main__":
    main()
