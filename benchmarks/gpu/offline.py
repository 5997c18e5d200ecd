"""The workload "offline": 256 requests at once, prompts and answers of 100 to 1,024 tokens
(142,827 in, 133,966 out), Qwen3-0.6B's shape. Output tokens a second."""

from __future__ import annotations

import random

from sluice_runtime.engine.build import Engine

from benchmarks.engine_loop import recorded
from benchmarks.gpu.engines import at_once, check_served, engine, output_rate, told
from benchmarks.turns import scaled

SHAPE, REQUESTS = "qwen3-0.6b", 256


def lengths(count: int = REQUESTS) -> list[tuple[int, int]]:
    """The draws are those of nano-vllm's bench.py, so that the totals are comparable."""
    draw = random.Random(0)
    prompts = [
        len([draw.randint(0, 10_000) for _ in range(draw.randint(100, 1024))]) for _ in range(count)
    ]
    return list(zip(prompts, [draw.randint(100, 1024) for _ in range(count)], strict=True))


def rate(made: Engine, count: int, *, overlap: bool = True) -> float:
    recorded(made, at_once([(64, 8)] * 32), overlap=overlap)
    requests = [(scaled(prompt), scaled(answer)) for prompt, answer in lengths(count)]
    record = recorded(made, at_once(requests), overlap=overlap)
    check_served(record)
    return output_rate(record)


def main() -> None:
    with engine(SHAPE, max_running_requests=REQUESTS) as made:
        told(
            "offline",
            rate(made, scaled(REQUESTS)),
            "output tokens/s",
            graph_steps=made.runner.graph_steps,
        )


if __name__ == "__main__":
    main()
