"""The workload "offline": 256 requests at once, prompts and answers of 100 to 1,024 tokens
(142,827 in, 133,966 out), Qwen3-0.6B's shape. Output tokens a second."""

from __future__ import annotations

import random
from typing import Any

from benchmarks.engine_loop import recorded
from benchmarks.gpu.engines import at_once, check_served, engine, output_rate, told

SHAPE = "qwen3-0.6b"


def lengths(count: int = 256) -> list[tuple[int, int]]:
    """The draws are those of nano-vllm's bench.py, so that the totals are comparable."""
    draw = random.Random(0)
    prompts = [
        len([draw.randint(0, 10_000) for _ in range(draw.randint(100, 1024))]) for _ in range(count)
    ]
    return list(zip(prompts, [draw.randint(100, 1024) for _ in range(count)], strict=True))


def rate(count: int, *, overlap: bool = True, **settings: Any) -> float:
    with engine(SHAPE, max_running_requests=256, overlap=overlap, **settings) as made:
        recorded(made, at_once([(64, 8)] * 32), overlap=overlap)
        record = recorded(made, at_once(lengths(count)), overlap=overlap)
    check_served(record)
    return output_rate(record)


if __name__ == "__main__":
    told("offline", rate(256), "output tokens/s")
