"""A prompt of 100,000 tokens while 20 requests decode at 2,000, Llama-3-8B's shape. Measured are
the gaps between their tokens and the prompt's first token, with the chunk chosen for a promise of
50 ms, and with a fixed chunk of 2,048."""

from __future__ import annotations

from typing import Any

from sluice_runtime.engine.build import Engine
from sluice_simulator.percentiles import spread
from sluice_simulator.record import Record
from sluice_simulator.traces.request import TraceRequest

from benchmarks.engine_loop import recorded
from benchmarks.gpu.engines import at_once, check_served, engine, gaps, told, under
from benchmarks.turns import scaled

DECODERS, CONTEXT, LONG = map(scaled, (20, 2000, 100_000))
PROMISE_MILLISECONDS = 50
ANSWER = scaled(400)
SHAPE, ROWS = "llama3-8b", {"max_running_requests": 32}
VARIANTS: dict[str, dict[str, Any]] = {
    "chosen": {"slo": {"itl_milliseconds": PROMISE_MILLISECONDS}},
    "fixed-2048": {"chunk_size": 2048},
}


def observe(made: Engine) -> Record:
    """The decoders' prompts first; a second later, when all decode, the long one arrives."""
    recorded(made, at_once([(CONTEXT, 64)] * DECODERS + [(8192, 4)]), overlap=True)
    decoders = [TraceRequest(0.0, CONTEXT, ANSWER) for _ in range(DECODERS)]
    return recorded(made, [*decoders, TraceRequest(1.0, LONG, 4)], overlap=True)


def main() -> None:
    with engine(SHAPE, **ROWS) as made:
        for variant, settings in VARIANTS.items():
            record = observe(under(made, SHAPE, **ROWS, **settings))
            check_served(record)
            long = record.timelines[-1]
            first = spread([(long.first_token_seconds or 0.0) - long.request.arrival_seconds])
            named = "long_prompt" if variant == "chosen" else f"long_prompt.{variant}"
            told(f"{named}.itl_p99", gaps(record).p99, "s, gaps of all tokens")
            told(f"{named}.itl_worst", gaps(record).worst, "s")
            told(f"{named}.ttft", first.mean, "s")


if __name__ == "__main__":
    main()
