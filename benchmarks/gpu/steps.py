"""Where the time of a decode step of 256 rows goes, Llama-3-8B's shape: matrix products, attention,
sampling, the rest of the device's time, and how long the device is idle. Measured by the profiler,
over steps that are launched ahead as in serving."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from contextlib import closing

import torch
from sluice_contract.config.accelerators import product_row
from sluice_runtime.engine.build import Engine
from sluice_runtime.engine.executors import Executor, PendingResult
from sluice_runtime.engine.sizing.gpu_plan import ModelBytes
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.wire.messages import Generate, Sampling
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.engines import engine, told
from benchmarks.turns import scaled

ACTIVITIES = (ProfilerActivity.CUDA, ProfilerActivity.CPU)
ROWS, CONTEXT, STEPS, WARM_STEPS = *map(scaled, (256, 512, 40)), 12
KINDS: Mapping[str, tuple[str, ...]] = {
    "products": ("gemm", "cutlass", "nvjet", "cublas", "splitk", "sm90_xmma"),
    "attention": ("flashinfer", "Attention", "PagedKV", "BatchDecode", "BatchPrefill", "flash"),
    "sampling": ("Sampl", "softmax", "SoftMax", "sort", "topk", "TopK", "argmax", "cumsum"),
    "copies": ("Memcpy", "Memset"),
}
"""Kind → parts of its kernels' names; the first kind that matches counts."""


def kind_of(kernel: str) -> str:
    named = ((kind, part) for kind, parts in KINDS.items() for part in parts)
    return next((kind for kind, part in named if part.lower() in kernel.lower()), "others")


class Steps:
    """Steps of an engine, each launched before the one before it has landed."""

    def __init__(self, made: Engine, executor: Executor) -> None:
        self._scheduler = made.scheduler
        self._executor = executor
        self._flight: list[tuple[Batch, PendingResult]] = []

    def run(self, count: int) -> None:
        for _ in range(count):
            batch = self._scheduler.next_batch(time.monotonic())
            if batch is None:
                raise RuntimeError("the requests ended before the steps")
            self._flight.append((batch, self._executor.launch(batch)))
            if len(self._flight) > self._executor.ahead:
                landed, result = self._flight.pop(0)
                self._scheduler.process(landed, result(), time.monotonic())


def bandwidth_limit(made: Engine, context: float) -> float | None:
    """Fewest seconds of a step: it reads all weights, and keys and values of `context` tokens a
    row, at the device's peak rate. None: the device is in no table."""
    row = product_row(torch.cuda.get_device_name(0).replace(" ", "-"))
    if row is None or row.peak is None:
        return None
    size = ModelBytes(made.model.spec, made.model.dtype.itemsize)
    return (size.weights + ROWS * context * size.token) / (row.peak.terabytes * 1e12)


def main() -> None:
    with engine("llama3-8b", max_running_requests=ROWS) as made:
        answer = WARM_STEPS + STEPS + 64
        for index in range(ROWS):
            prompt, sampling = [index + 1] * CONTEXT, Sampling(temperature=0.6, seed=index)
            made.scheduler.add(Generate(str(index), prompt, answer, sampling, ignore_eos=True))
        with closing(made.executor(overlap=True)) as executor:
            steps = Steps(made, executor)
            while made.scheduler.status().running_requests < ROWS:
                steps.run(1)
            steps.run(WARM_STEPS)
            torch.cuda.synchronize()
            began = time.perf_counter()
            steps.run(STEPS)
            torch.cuda.synchronize()
            plain = (time.perf_counter() - began) / STEPS
            limit = bandwidth_limit(made, CONTEXT + WARM_STEPS + 1.5 * STEPS)
            with profile(activities=ACTIVITIES, acc_events=True) as profiled:
                steps.run(STEPS)
                torch.cuda.synchronize()
    spent = Counter[str]()
    for event in profiled.key_averages():
        # Operators of the host have their kernels' time, too.
        if event.device_type.name == "CUDA":
            spent[kind_of(event.key)] += event.self_device_time_total / 1e6 / STEPS
    told("steps.decode", 1000 * plain, "ms", rows=ROWS)
    if limit is not None:
        told("steps.bandwidth_limit", 1000 * limit, "ms", share=round(limit / plain, 3))
    for kind, seconds in spent.items():
        told(f"steps.{kind}", 1000 * seconds, "ms", share=round(seconds / plain, 3))
    told("steps.idle", max(0.0, 1 - spent.total() / plain), "share of a step without the profiler")


if __name__ == "__main__":
    main()
