"""The offline workload with a quarter of its requests: steps launched ahead or one by one, and with
CUDA graphs or without, on one engine. Output tokens a second, and the ratio."""

from __future__ import annotations

from benchmarks.gpu.engines import engine, told
from benchmarks.gpu.offline import SHAPE, rate
from benchmarks.turns import scaled

REQUESTS = scaled(64)


def main() -> None:
    with engine(SHAPE, max_running_requests=256) as made:
        ahead = rate(made, REQUESTS)
        told("overlap.on", ahead, "output tokens/s", graph_steps=made.runner.graph_steps)
        compare("off", ahead, rate(made, REQUESTS, overlap=False))
        assert made.runner.graph_steps, "no step was computed by a CUDA graph"
        made.runner.close()  # drops the graphs
        compare("graphs-off", ahead, rate(made, REQUESTS))


def compare(name: str, ahead: float, without: float) -> None:
    told(f"overlap.{name}", without, "output tokens/s")
    told(f"overlap.ratio.{name}", ahead / without, "with both / without")


if __name__ == "__main__":
    main()
