"""The offline workload with a quarter of its requests: steps launched ahead or one by one, and with
CUDA graphs or without. Output tokens a second, and the ratio."""

from __future__ import annotations

from benchmarks.gpu.engines import told
from benchmarks.gpu.offline import rate

REQUESTS = 64


def main() -> None:
    ahead = rate(REQUESTS)
    for name, found in (
        ("off", rate(REQUESTS, overlap=False)),
        ("graphs-off", rate(REQUESTS, cuda_graph_max_batch=0)),
    ):
        told(f"overlap.{name}", found, "output tokens/s")
        told(f"overlap.ratio.{name}", ahead / found, "with both / without")
    told("overlap.on", ahead, "output tokens/s")


if __name__ == "__main__":
    main()
