"""One hand-over looked at closely: how much of it is hidden by prefill, and how much remains.

A prefill engine is another process, the decode engine this one; both run their loops with real
backends and connections, without HTTP. A long prompt goes over in chunks, then short ones. Both
processes read the same clock. Prints one JSON line a figure.
"""

from __future__ import annotations

import argparse
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import IO, Any

from sluice_contract.cluster.labels import Role
from sluice_contract.config.engine import EngineConfig
from sluice_contract.config.kv_transfer import KvTransfer
from sluice_runtime.engine.build import build_engine
from sluice_runtime.engine.executors import Executor, PendingResult
from sluice_runtime.engine.handover import started_role
from sluice_runtime.engine.loop import EngineLoop, Pipeline
from sluice_runtime.engine.report import StepLog
from sluice_runtime.engine.role import EngineRole
from sluice_runtime.engine.sizing.plan import resolved
from sluice_runtime.engine.warm_up import warm_up
from sluice_runtime.model.files import resolve
from sluice_runtime.scheduler.batch import Batch, FinishedChunk
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.wire.messages import (
    EngineReady,
    Generate,
    PrefillEngine,
    Sampling,
    StepResult,
)

from benchmarks.cpu_serving import as_an_engine_process, write_model
from tests.runtime.handover.engines import ThreadLink

KEY = b"k" * 32
CHUNK, CONTEXT = 1_024, 16_384
LONG, SHORT = 9 * CHUNK, 64
"""Tokens of the prompts; 8,192 bytes each, so the long one has 75 MB in 9 chunks."""
BOUND_MS = 10.0
"""Milliseconds that may be added to bytes ÷ bandwidth."""


class Watched:
    """A role and an executor that note times of events; everything else is passed on to them."""

    def __init__(
        self,
        role: EngineRole,
        scheduler: Scheduler,
        executor: Executor,
        tell: Callable[[str, float], None],
    ) -> None:
        self._role = role
        self._scheduler = scheduler
        self._executor = executor
        self._tell = tell
        self.ahead = executor.ahead
        self.reads: list[tuple[float, int, float]] = []
        """Time, bytes and seconds of reads so far, after each turn."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._role, name)

    def receive(self, now: float) -> None:
        self._role.receive(now)
        if load := self._role.load(self._scheduler.status()):
            self.reads.append((time.monotonic(), load.read_bytes, load.read_seconds))

    def computed(self, chunks: Iterable[FinishedChunk]) -> None:
        if chunks:
            self._tell("computed", time.monotonic())
        self._role.computed(chunks)

    def launch(self, batch: Batch) -> PendingResult:
        if batch.decode_rows:
            self._tell("decodes", time.monotonic())
        return self._executor.launch(batch)


@contextmanager
def engine(
    folder: Path, role: str, backend: str, tell: Callable[[str, float], None]
) -> Iterator[tuple[ThreadLink, EngineReady, Watched]]:
    """An engine's loop in a thread."""
    settings = {
        "model": {"uri": str(folder)},
        "role": Role(role),
        "kv_pool_tokens": 2 * CONTEXT,
        "chunk_size": CHUNK,
        "threads": 1,
    }
    config = resolved(EngineConfig.model_validate(settings))
    kv = KvTransfer.model_validate({"backend": backend}).model_copy(update={"bootstrap_port": 0})
    config = config.model_copy(update={"kv_transfer": kv})
    built, link, stop = (
        build_engine(config, resolve(config.model.uri)),
        ThreadLink(),
        threading.Event(),
    )
    warm_up(built.runner, built.settings, built.model.spec.vocabulary_size)
    with ExitStack() as stack:
        stack.enter_context(closing(built.grammar_compiler))
        ready = built.ready(secrets.token_hex(8))
        started = stack.enter_context(
            started_role(config, built, lambda: (KEY,), ready, link.wakeup.set)
        )
        executor = stack.enter_context(closing(built.executor(overlap=bool(config.overlap))))
        watched = Watched(started.role, built.scheduler, executor, tell)
        page_size = built.settings.page_size
        loop = EngineLoop(
            link,
            Pipeline(built.grammars, built.scheduler, watched),
            lambda pace: StepLog(page_size, pace),
            role=watched,
        )
        thread = threading.Thread(target=loop.run, args=[stop.is_set])
        thread.start()
        yield link, started.ready, watched
        stop.set()
        link.wakeup.set()
        thread.join()


def serve(folder: Path, backend: str) -> None:
    """Runs a prefill engine until standard input ends; prints a line for each computed chunk."""
    with engine(
        folder, "prefill", backend, lambda what, at: print(json.dumps([what, at]), flush=True)
    ) as (_, ready, _watched):
        print(json.dumps([ready.bootstrap_port, ready.epoch]), flush=True)
        sys.stdin.read()


@contextmanager
def prefill_engine(folder: Path, backend: str) -> Iterator[tuple[PrefillEngine, deque[float]]]:
    """A prefill engine in another process, and the times at which it computed chunks."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.pd_handover",
        "--serve",
        str(folder),
        "--backend",
        backend,
    ]
    chunks: deque[float] = deque()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        port, epoch = json.loads(process.stdout.readline())

        def follow(lines: IO[str] = process.stdout) -> None:
            for line in lines:
                chunks.append(json.loads(line)[1])

        reader = threading.Thread(target=follow)
        reader.start()
        yield PrefillEngine("127.0.0.1", port, epoch), chunks
        process.stdin.close()
        reader.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="Mooncake", choices=("Mooncake", "TCP"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    as_an_engine_process("benchmarks.pd_handover")
    if options.serve:
        serve(options.serve, options.backend)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, CONTEXT)
        measure(folder, options.backend, options.rounds)


def measure(folder: Path, backend: str, rounds: int) -> None:
    decodes: deque[float] = deque()
    with (
        prefill_engine(folder, backend) as (prefill, chunks),
        engine(folder, "decode", backend, lambda what, at: decodes.append(at)) as (
            link,
            _,
            watched,
        ),
    ):
        for kind, tokens, count in (("long", LONG, rounds), ("short", SHORT, 6 * rounds)):
            seen = []
            for number in range(count + 1):
                prompt = [
                    (number * 7_919 + token * 31 + tokens) % 16_000 for token in range(tokens)
                ]
                for each in (chunks, decodes, watched.reads):
                    each.clear()
                sent = time.monotonic()
                ask(link, prompt, prefill)
                time.sleep(0.05)  # lines of the other process
                seen.append(facts(sent, list(chunks), decodes[0], watched.reads))
            report(kind, backend, seen[1:])


def ask(link: ThreadLink, prompt: list[int], prefill: PrefillEngine) -> None:
    """Sends a request with a prompt, and returns when it has ended."""
    request = Generate(
        secrets.token_hex(4),
        prompt,
        4,
        Sampling(temperature=0.0),
        ignore_eos=True,
        prefill=prefill,
        arrival_seconds=time.monotonic(),
    )
    link.coming.append(request)
    link.wakeup.set()
    while True:
        message = link.sent.get(timeout=60)
        for delta in message.deltas if isinstance(message, StepResult) else ():
            if delta.finish_reason:
                assert delta.finish_reason == "length", delta
                return


def facts(
    sent: float, chunks: list[float], decodes: float, reads: list[tuple[float, int, float]]
) -> dict[str, float]:
    """Figures of the hand-over of one prompt. `reads` are sums since the engine's start."""
    start_bytes, start_seconds = reads[0][1:]
    hidden = [each for each in reads if each[0] <= chunks[-1]][-1]
    total = reads[-1][1] - start_bytes
    left_seconds = reads[-1][2] - hidden[2]
    after = decodes - chunks[-1]
    return {
        "bytes": total,
        "chunks": len(chunks),
        "hidden_share": (hidden[1] - start_bytes) / total,
        "read_gb_per_second": total / (reads[-1][2] - start_seconds) / 1e9,
        "before_last_chunk_ms": 1000 * (chunks[-1] - sent),
        "last_chunk_to_decode_ms": 1000 * after,
        "of_which_reading_ms": 1000 * left_seconds,
        "beside_reading_ms": 1000 * (after - left_seconds),
    }


def report(kind: str, backend: str, seen: list[dict[str, float]]) -> None:
    for figure in seen[0]:
        values = [each[figure] for each in seen]
        line = {
            "bench": "pd",
            "figure": f"hand_over.{kind}.{figure}",
            "value": round(statistics.median(values), 3),
            "worst": round(max(values), 3),
            "backend": backend,
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
