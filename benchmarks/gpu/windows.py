"""A decode step of gpt-oss-20b's shape in bfloat16, by flashinfer's kernels in CUDA graphs and by
plain torch, which has no graphs. All layers have sinks, every second one a sliding window."""

from __future__ import annotations

from benchmarks.gpu.engines import engine, told
from benchmarks.gpu.steps import ReplayClock, measured
from benchmarks.turns import scaled

SHAPE = "gpt-oss-20b"
ROWS = tuple(map(scaled, (256, 32)))
BACKENDS = {"flashinfer": "auto", "torch": "torch"}


def main() -> None:
    for name, backend in BACKENDS.items():
        clock, settings = ReplayClock(), {"attention_backend": backend}
        with clock.timing(), engine(SHAPE, max_running_requests=max(ROWS), **settings) as made:
            for rows in ROWS:
                times = measured(made, rows, clock)
                told(f"windows.{name}.decode", 1000 * times.whole, "ms", rows=rows)
                told(f"windows.{name}.device", 1000 * times.busy.total(), "ms busy", rows=rows)
                host = 1000 * (times.whole - times.waited)
                told(f"windows.{name}.host", host, "ms of work", rows=rows)


if __name__ == "__main__":
    main()
