"""Where the time of a decode step goes, over steps that are launched ahead as in serving.

Llama-3-8B's shape at 256 rows: matrix products, attention, sampling, the rest of the device's time,
and how long the device is idle. Qwen3-0.6B's shape at 256, 128 and 32 rows: how long the device is
busy, how long the host works, of which CPU time to replay graphs, and how long it waits for the
device. A step in which the host waits is bound by the device. Its two query heads a key head are
decoded with and without tensor cores. `no_pdl` is without programmatic dependent launch: a kernel
begins once the one before it has ended. The profiler measures the device's time, in steps of their
own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
from sluice_contract.config.accelerators import product_row
from sluice_runtime.engine.build import Engine
from sluice_runtime.engine.executors import Executor, PendingResult
from sluice_runtime.engine.graphs import CudaCapture, Replay
from sluice_runtime.engine.sizing.gpu_plan import ModelBytes
from sluice_runtime.layers import flashinfer_workspace
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.wire.messages import Generate, Sampling
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.engines import SHAPES, engine, told
from benchmarks.turns import scaled

ACTIVITIES = (ProfilerActivity.CUDA, ProfilerActivity.CPU)
ROWS, CONTEXT, STEPS, WARM_STEPS = *map(scaled, (256, 512, 40)), 12
PROFILED_CONTEXT = CONTEXT + WARM_STEPS + 1.5 * STEPS
"""Tokens of a row in the middle of the steps that are profiled."""
SMALL_ROWS = tuple(map(scaled, (256, 128, 32)))
SMALL, LARGE = "qwen3-0.6b", "llama3-8b"
KINDS: Mapping[str, tuple[str, ...]] = {
    "products": ("gemm", "cutlass", "nvjet", "cublas", "splitk", "sm90_xmma"),
    "attention": ("flashinfer", "Attention", "PagedKV", "BatchDecode", "BatchPrefill", "flash"),
    "sampling": ("Sampl", "softmax", "SoftMax", "sort", "topk", "TopK", "argmax", "cumsum"),
    "copies": ("Memcpy", "Memset"),
}
"""Kind → parts of its kernels' names; the first kind that matches counts."""
MODULES_WITH_PDL = ("activation", "decode", "norm", "prefill")
"""Modules of flashinfer that ask whether the device has PDL."""


def kind_of(kernel: str) -> str:
    named = ((kind, part) for kind, parts in KINDS.items() for part in parts)
    return next((kind for kind, part in named if part.lower() in kernel.lower()), "others")


class Steps:
    """Steps of an engine, each launched before the one before it has landed."""

    def __init__(self, made: Engine, executor: Executor) -> None:
        self._scheduler = made.scheduler
        self._executor = executor
        self._flight: list[tuple[Batch, PendingResult]] = []
        self.waited_seconds = 0.0
        """Time in which the host waited for results."""

    def run(self, count: int) -> None:
        for _ in range(count):
            if not self._launched():
                raise RuntimeError("the requests ended before the steps")
            if len(self._flight) > self._executor.ahead:
                self._land()

    def end(self, requests: int) -> None:
        """Ends the requests 0 to `requests` - 1, so that their rows are free again."""
        for index in range(requests):
            self._scheduler.abort(str(index))
        while self._launched() or self._flight:
            self._land()

    def _launched(self) -> bool:
        batch = self._scheduler.next_batch(time.monotonic())
        if batch is not None:
            self._flight.append((batch, self._executor.launch(batch)))
        return batch is not None

    def _land(self) -> None:
        batch, result = self._flight.pop(0)
        began = time.perf_counter()
        tokens = result()
        self.waited_seconds += time.perf_counter() - began
        self._scheduler.process(batch, tokens, time.monotonic())


@dataclass(frozen=True)
class StepTimes:
    """Seconds of one step."""

    whole: float
    waited: float
    """Part in which the host waited for the device."""
    busy: Counter[str]
    """Time of the device, by kind of kernel."""
    replays: float
    """CPU time of the host to replay graphs."""

    def attention_rate(self, made: Engine, rows: int) -> float:
        """TB/s at which attention reads keys and values."""
        size = ModelBytes(made.model.spec, made.model.dtype.itemsize)
        read = rows * PROFILED_CONTEXT * size.token
        return read / max(self.busy["attention"], 1e-9) / 1e12


class ReplayClock:
    """CPU seconds that replays of graphs take, of those that are captured under `timing`."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def timing(self) -> Iterator[ReplayClock]:
        """Context in which graphs are captured."""
        capture = CudaCapture.__call__

        def timed(own: CudaCapture, step: Callable[[], None]) -> Replay:
            replay = capture(own, step)

            def run() -> None:
                began = time.thread_time()
                replay()
                self.seconds += time.thread_time() - began

            return run

        with patch.object(CudaCapture, "__call__", timed):
            yield self


def measured(made: Engine, rows: int, replays: ReplayClock) -> StepTimes:
    """Times of a step in which `rows` requests decode."""
    answer = WARM_STEPS + 2 * STEPS + 64
    for index in range(rows):
        prompt, sampling = [index + 1] * CONTEXT, Sampling(temperature=0.6, seed=index)
        made.scheduler.add(Generate(str(index), prompt, answer, sampling, ignore_eos=True))
    with closing(made.executor(overlap=True)) as executor:
        steps = Steps(made, executor)
        while made.scheduler.status().running_requests < rows:
            steps.run(1)
        steps.run(WARM_STEPS)
        torch.cuda.synchronize()
        began, waited, replayed = time.perf_counter(), steps.waited_seconds, replays.seconds
        steps.run(STEPS)
        torch.cuda.synchronize()
        whole, waited = time.perf_counter() - began, steps.waited_seconds - waited
        replayed = replays.seconds - replayed
        with profile(activities=ACTIVITIES, acc_events=True) as profiled:
            steps.run(STEPS)
            torch.cuda.synchronize()
        steps.end(rows)
    busy = Counter[str]()
    for event in profiled.key_averages():
        # Operators of the host have their kernels' time, too.
        if event.device_type.name == "CUDA":
            busy[kind_of(event.key)] += event.self_device_time_total / 1e6 / STEPS
    return StepTimes(whole / STEPS, waited / STEPS, busy, replayed / STEPS)


def bandwidth_limit(made: Engine, context: float) -> float | None:
    """Fewest seconds of a step: it reads all weights, and keys and values of `context` tokens a
    row, at the device's peak rate. None: the device is in no table."""
    row = product_row(torch.cuda.get_device_name(0).replace(" ", "-"))
    if row is None or row.peak is None:
        return None
    size = ModelBytes(made.model.spec, made.model.dtype.itemsize)
    return (size.weights + ROWS * context * size.token) / (row.peak.terabytes * 1e12)


def large() -> None:
    """Figures of Llama-3-8B's shape."""
    clock = ReplayClock()
    with clock.timing(), engine(LARGE, max_running_requests=ROWS) as made:
        times = measured(made, ROWS, clock)
        limit, rate = bandwidth_limit(made, PROFILED_CONTEXT), times.attention_rate(made, ROWS)
    plain = times.whole
    told("steps.decode", 1000 * plain, "ms", rows=ROWS)
    if limit is not None:
        told("steps.bandwidth_limit", 1000 * limit, "ms", share=round(limit / plain, 3))
    for kind, seconds in times.busy.items():
        told(f"steps.{kind}", 1000 * seconds, "ms", share=round(seconds / plain, 3))
    told("steps.attention_rate", rate, "TB/s")
    told("steps.replay", 1000 * times.replays, "ms of CPU", rows=ROWS)
    told(
        "steps.idle",
        max(0.0, 1 - times.busy.total() / plain),
        "share of a step without the profiler",
    )


@contextmanager
def small_engine(*, tensor_cores: bool, pdl: bool = True) -> Iterator[tuple[Engine, ReplayClock]]:
    """An engine of Qwen3-0.6B's shape, and the clock of its graphs."""
    group = SHAPES[SMALL]["num_attention_heads"] // SHAPES[SMALL]["num_key_value_heads"]
    tensor_cores_from, clock = group if tensor_cores else group + 1, ReplayClock()
    with ExitStack() as stack:
        stack.enter_context(
            patch.object(flashinfer_workspace, "TENSOR_CORES_FROM", tensor_cores_from)
        )
        for module in () if pdl else MODULES_WITH_PDL:
            # `large` has imported flashinfer by then.
            name = f"flashinfer.{module}.device_support_pdl"
            stack.enter_context(patch(name, lambda device: False))
        stack.enter_context(clock.timing())
        yield stack.enter_context(engine(SMALL, max_running_requests=max(SMALL_ROWS))), clock


def small(kernels: str, *, tensor_cores: bool, pdl: bool = True) -> None:
    """Figures of Qwen3-0.6B's shape."""
    with small_engine(tensor_cores=tensor_cores, pdl=pdl) as (made, clock):
        for rows in SMALL_ROWS:
            times, name = measured(made, rows, clock), f"steps.{SMALL}.{kernels}"
            told(f"{name}.decode", 1000 * times.whole, "ms", rows=rows)
            told(f"{name}.device", 1000 * times.busy.total(), "ms busy", rows=rows)
            told(f"{name}.attention", 1000 * times.busy["attention"], "ms", rows=rows)
            told(f"{name}.attention_rate", times.attention_rate(made, rows), "TB/s", rows=rows)
            told(f"{name}.host", 1000 * (times.whole - times.waited), "ms of work", rows=rows)
            told(f"{name}.replay", 1000 * times.replays, "ms of CPU", rows=rows)
            told(f"{name}.wait", 1000 * times.waited, "ms", rows=rows)


def main() -> None:
    large()
    small("cuda_cores", tensor_cores=False)
    small("tensor_cores", tensor_cores=True)
    small("no_pdl", tensor_cores=False, pdl=False)


if __name__ == "__main__":
    main()
