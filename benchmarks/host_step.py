"""CPU time of the host in a decode step on GPUs: whole steps, and their launch alone.

The engine's loop, scheduler, runner, graphs and flashinfer's own Python run as they are. What would
compute is replaced: a graph's replay does nothing, compiled functions return at once, kernels of
ours are one small operation, and tensors are on the CPU. So the time of replaying a graph and of
driver calls is left out, and the rest counts. Prints one JSON line a figure; compare two trees in
turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import msgspec
import torch
from sluice_kernels.reference import DecodeTensors
from sluice_runtime.engine.device import CPU, StreamDevice
from sluice_runtime.engine.executors import PendingResult, StreamExecutor
from sluice_runtime.engine.graphs import graph_batches
from sluice_runtime.engine.loop import EngineLoop, Pipeline
from sluice_runtime.engine.report import StepLog
from sluice_runtime.engine.rows import RowState, RowTable
from sluice_runtime.engine.runner import Runner
from sluice_runtime.engine.sampling.draw import SamplingTable, TableSize
from sluice_runtime.engine.sizing.host import collect_garbage_rarely
from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.grammar.waiting import GrammarQueue
from sluice_runtime.kv.pool import KvShape, PagePool
from sluice_runtime.layers import flashinfer_graphs
from sluice_runtime.layers.attention import PLAIN
from sluice_runtime.layers.backend import TORCH
from sluice_runtime.layers.flashinfer_library import Target
from sluice_runtime.parallel.group import SOLO
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.wire.messages import Generate, Sampling, ToApi, ToEngine
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.turns import report

ROWS: Final = (256, 64)
STEPS, WARM_STEPS = 400, 30
PAGE_SIZE, PROMPT_TOKENS, VOCABULARY, TOKEN = 16, 560, 151_936, 7
SHAPE: Final = KvShape(1, 8, 16, torch.bfloat16)
HEADS: Final = 16


class Event:
    """Event of a copy that is made at once."""

    def record(self) -> None:
        """Does nothing."""

    def synchronize(self) -> None:
        """Returns at once."""


class CompiledModule:
    """Compiled functions of flashinfer that return at once."""

    def plan(self, *_: Any) -> list[int]:
        return [1, 2, 3]

    def run(self, *_: Any) -> None:
        """Computes nothing."""

    paged_run = run


@contextmanager
def flashinfer_without_kernels() -> Iterator[Any]:
    """flashinfer with its compiled functions replaced."""
    import flashinfer
    from flashinfer import decode, prefill

    module, empty = CompiledModule(), torch.empty
    with ExitStack() as stack:
        for owner, name, value in (
            (prefill, "get_batch_prefill_module", lambda *_: module),
            (decode, "get_batch_prefill_module", lambda *_: module),
            (decode, "get_batch_decode_module", lambda *_: module),
            (flashinfer_graphs, "copy_event", lambda _: Event()),
            (torch.cuda, "device", lambda _: nullcontext()),
            (torch, "empty", lambda *size, pin_memory=False, **kind: empty(*size, **kind)),
        ):
            stack.enter_context(patch.object(owner, name, value))
        yield flashinfer


def decode_inputs(step: DecodeTensors) -> None:
    """Kernel that gives all rows one token."""
    step.token_ids.fill_(TOKEN)


class Model:
    """A model that computes nothing, in place of `model.decoder.Decoder`."""

    group = SOLO
    adapters = None
    spec = SimpleNamespace(vocabulary_size=VOCABULARY, hidden_size=8, layers=1)
    backend = replace(
        TORCH,
        reads_whole_pages=False,
        sample_rows=lambda logits, *_: torch.full((len(logits),), TOKEN),
        decode_inputs=decode_inputs,
    )

    def hidden(self, token_ids: Tensor, *_: Any) -> Tensor:
        return torch.zeros(len(token_ids), 8, dtype=torch.bfloat16)

    def head_logits(self, hidden: Tensor) -> Tensor:
        return torch.zeros(len(hidden), 1).expand(-1, VOCABULARY)

    logits = head_logits


class Link:
    """Brings all requests at once, and encodes what the loop sends."""

    def __init__(self, requests: Sequence[Generate]) -> None:
        self._coming: list[ToEngine] = list(requests)
        self._encoder = msgspec.msgpack.Encoder()

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        arrived, self._coming = self._coming, []
        return arrived

    def send(self, message: ToApi) -> None:
        self._encoder.encode(message)


class Launches:
    """Executor that measures its launches."""

    def __init__(self, executor: StreamExecutor) -> None:
        self.ahead = executor.ahead
        self.seconds: list[float] = []
        self._executor = executor

    def launch(self, batch: Batch) -> PendingResult:
        began = time.thread_time()
        try:
            return self._executor.launch(batch)
        finally:
            self.seconds.append(time.thread_time() - began)


class HostSteps:
    """An engine's loop over `rows` requests, all of which decode."""

    def __init__(self, rows: int, steps: int, library: Any, page_size: int = PAGE_SIZE) -> None:
        answer = WARM_STEPS + steps + 100
        row_pages = -(-(PROMPT_TOKENS + answer) // page_size)
        pool = PagePool(SHAPE, rows * (row_pages + 1), page_size, CPU)
        device = StreamDevice(CPU, lambda size: torch.zeros(size, dtype=torch.uint8), Event)
        self.runner = _runner(rows, row_pages, pool, device)
        target = Target(CPU, (9, 0), 132)
        wrappers = flashinfer_graphs.GraphWrappers(library, target, PLAIN, pool, HEADS)
        self.replays = 0
        batches = graph_batches(rows)
        self.runner.capture(batches, wrappers.wrapper, lambda _: self._replay, batches)
        scheduler = Scheduler(_settings(rows, pool), PageAllocator(pool.pages))
        self.link = Link([_request(row, answer) for row in range(rows)])
        self.launches = Launches(StreamExecutor(self.runner, ahead=1))
        compiler: Any = SimpleNamespace(finished=list)
        grammars = GrammarQueue(compiler, Matchers(VOCABULARY, 1), 4)
        pipeline = Pipeline(grammars, scheduler, self.launches)
        self.loop = EngineLoop(self.link, pipeline, lambda pace: StepLog(page_size, pace))
        while scheduler.status().running_requests < rows or scheduler.status().queued_requests:
            self.loop.step()
        for _ in range(WARM_STEPS):
            self.loop.step()

    def _replay(self) -> None:
        self.replays += 1


def _runner(rows: int, row_pages: int, pool: PagePool, device: StreamDevice) -> Runner:
    model: Any = Model()
    table = RowTable(rows, row_pages, pool, device, clears_pages=False)
    size = TableSize(rows, VOCABULARY, row_pages * pool.page_size)
    sampling = SamplingTable(size, device, model.backend)
    return Runner(model, pool, RowState(table, sampling, Matchers(VOCABULARY, 1)), device)


def _settings(rows: int, pool: PagePool) -> SchedulerSettings:
    return SchedulerSettings(
        limits=Limits(8192, pool.pages * pool.page_size),
        page_size=pool.page_size,
        chunk_size=8192,
        max_prefill_tokens=16_384,
        min_prefill_tokens=pool.page_size,
        max_running_requests=rows,
        max_queued_requests=4096,
        mixed=True,
        conservativeness=0.3,
        policy="fcfs",
    )


def _request(row: int, answer: int) -> Generate:
    prompt = [(row * 7 + place) % 50_000 for place in range(PROMPT_TOKENS)]
    sampling = Sampling(temperature=0.6, seed=row)
    return Generate(str(row), prompt, answer, sampling, ignore_eos=True, credit_tokens=1 << 20)


class Operations(TorchDispatchMode):
    """Counts torch's operations by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.counts[str(func)] += 1
        return func(*args, **(kwargs or {}))


def operations(step: Callable[[], object], steps: int) -> Counter[str]:
    """Torch's operations of `steps` calls of `step`."""
    seen = Operations()
    with seen:
        for _ in range(steps):
            step()
    return seen.counts


def measure(rows: int, steps: int, library: Any) -> None:
    site = HostSteps(rows, steps, library)
    collect_garbage_rarely()
    seconds: list[float] = []
    site.launches.seconds.clear()
    for _ in range(steps):
        began = time.thread_time()
        site.loop.step()
        seconds.append(time.thread_time() - began)
    launches = statistics.median(site.launches.seconds)
    counted = operations(site.loop.step, 16).total() / 16
    facts = {"rows": rows, "steps": steps}
    report("host_step", 1e6 * statistics.median(seconds), unit="us CPU a step", **facts)
    report("host_step.launch", 1e6 * launches, unit="us CPU a step", **facts)
    report("host_step.operations", counted, unit="torch operations a step", **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with flashinfer_without_kernels() as library:
        for rows in arguments.rows:
            measure(rows, arguments.steps, library)


if __name__ == "__main__":
    main()
