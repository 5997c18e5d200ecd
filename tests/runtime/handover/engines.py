"""Real engines in this process, each with its loop in a thread, over real connections."""

from __future__ import annotations

import json
import queue
import select
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import WIRES, KvTransfer
from sluice_runtime.engine.build import Engine, EngineHooks, build_engine
from sluice_runtime.engine.device import place_of
from sluice_runtime.engine.handover import started_role
from sluice_runtime.engine.loop import EngineLoop, Pipeline
from sluice_runtime.engine.pool_transport import PoolTransport, staged
from sluice_runtime.engine.prepare import prepare
from sluice_runtime.engine.report import StepLog
from sluice_runtime.handover.transfer.backend import TransferBackend
from sluice_runtime.handover.transfer.reader import WORKERS
from sluice_runtime.kv.host_blocks import BlockCounts, HostBlocks
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.model.files import resolve
from sluice_runtime.parallel.joined import joined_ranks
from sluice_runtime.wire.messages import (
    EngineReady,
    Generate,
    PrefillEngine,
    StepResult,
    ToApi,
    ToEngine,
    TokenDelta,
)
from sluice_runtime.wire.transport import Wakeup

from tests.patience import PATIENCE_SECONDS
from tests.runtime.harness import resolved_config

KEY = b"k" * 32
WAIT_SECONDS = 60.0
Connect = Callable[[PagePool, TransferBackend], PoolTransport]


class ThreadLink:
    """The engine's end of a transport between two threads."""

    def __init__(self) -> None:
        self.wakeup = Wakeup()
        self.coming: deque[ToEngine] = deque()
        self.sent: queue.Queue[ToApi] = queue.Queue()

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        if not self.coming:
            select.select([self.wakeup], [], [], timeout_seconds)
        self.wakeup.clear()
        return [self.coming.popleft() for _ in range(len(self.coming))]

    def send(self, message: ToApi) -> None:
        self.sent.put(message)

    def ask(self, *messages: ToEngine) -> None:
        self.coming.extend(messages)
        self.wakeup.set()


@dataclass
class Answer:
    """What the client of one request got."""

    tokens: list[int] = field(default_factory=list)
    deltas: list[TokenDelta] = field(default_factory=list)

    @property
    def end(self) -> TokenDelta:
        return self.deltas[-1]

    @property
    def logprobs(self) -> list[Any]:
        return [score for delta in self.deltas for score in delta.logprobs]

    @property
    def prompt_logprobs(self) -> list[Any]:
        return [score for delta in self.deltas for score in delta.prompt_logprobs or ()]


class RunningEngine:
    """An engine whose loop runs in a thread."""

    def __init__(self, engine: Engine, link: ThreadLink, ready: EngineReady) -> None:
        self.engine, self.link, self.ready = engine, link, ready
        self.last: StepResult | None = None

    def answers(self, requests: Sequence[Generate]) -> dict[str, Answer]:
        """To all of them, once each has ended."""
        self.link.ask(*requests)
        answers = {request.request_id: Answer() for request in requests}
        open_ids = set(answers)
        while open_ids:
            message = self.link.sent.get(timeout=WAIT_SECONDS)
            for delta in message.deltas if isinstance(message, StepResult) else ():
                answer = answers[delta.request_id]
                answer.deltas.append(delta)
                answer.tokens += delta.token_ids
                if delta.finish_reason:
                    open_ids.remove(delta.request_id)
            if isinstance(message, StepResult):
                self.last = message
        return answers

    def ref(self) -> PrefillEngine:
        return PrefillEngine("127.0.0.1", self.ready.bootstrap_port, self.ready.epoch, "prefill-0")


@contextmanager
def running(role: str, backend: str = "TCP", **settings: Any) -> Iterator[RunningEngine]:
    """With page checks when it ends: nothing is held by anybody. `staged`: the pool counts as a
    device's, whose pages come and go through a few blocks of three pages. `connect`: in place of
    `transport_of`. `ranks`: processes that share each layer; one engine of several a process."""
    overlap, port = settings.pop("overlap", False), settings.pop("bootstrap_port", 0)
    blocks = through_blocks if settings.pop("staged", False) else None
    connect: Connect | None = settings.pop("connect", blocks)
    model, size = settings.pop("model", "dummy://qwen3-tiny"), settings.pop("ranks", 1)
    config = resolved_config(model, role=Role(role), **settings)
    config = settled = config.model_copy(update={"tensor_parallel_size": size})
    if role != "mixed":
        kv = KvTransfer.model_validate(
            {"backend": backend, "protocol": WIRES[backend][0]}
        ).model_copy(update={"bootstrap_port": port})
        config = settled.model_copy(update={"kv_transfer": kv})
    hooks = EngineHooks(poison_freed_pages=True)
    link = ThreadLink()
    stop = threading.Event()
    with ExitStack() as stack:
        ranks = stack.enter_context(joined_ranks(settled, place_of(settled.accelerator)))
        engine = build_engine(config, resolve(config.model.uri), hooks, group=ranks.group)
        if size > 1:  # as the others do
            prepare(config, engine)
        stack.enter_context(closing(engine.grammar_compiler))
        ready, wake = engine.ready(f"epoch-{role}"), link.wakeup.set
        started = stack.enter_context(
            started_role(config, engine, lambda: (KEY,), ready, wake, ranks.copiers, connect)
        )
        executor = stack.enter_context(
            closing(engine.executor(overlap=overlap, announce=ranks.announce))
        )
        loop = EngineLoop(
            link,
            Pipeline(engine.grammars, engine.scheduler, executor),
            lambda pace: StepLog(engine.settings.page_size, pace),
            role=started.role,
            adapters=engine.adapters,
        )
        if engine.adapters is not None:
            stack.enter_context(engine.adapters.following(link.wakeup.set))
        thread = threading.Thread(target=loop.run, args=[stop.is_set], name=role)
        thread.start()
        try:
            yield RunningEngine(engine, link, started.ready)
        finally:
            stop.set()
            link.wakeup.set()
            thread.join()
        engine.scheduler.check_integrity()
        status = engine.scheduler.status()
        assert status.pages_available == status.pages_total
        assert not loop.busy


def through_blocks(pool: PagePool, backend: TransferBackend) -> PoolTransport:
    return staged(
        pool, backend, HostBlocks(pool, BlockCounts(WORKERS, WORKERS), 3 * pool.page_bytes)
    )


class HasPrefill(Protocol):
    """A prefill engine, wherever it runs."""

    def ref(self) -> PrefillEngine: ...


@dataclass(frozen=True)
class Elsewhere:
    """A prefill engine of another process."""

    engine: PrefillEngine

    def ref(self) -> PrefillEngine:
        return self.engine


@contextmanager
def prefill_elsewhere(**settings: Any) -> Iterator[Elsewhere]:
    """In another process: torch knows one group of ranks a process."""
    words = [sys.executable, "-m", "tests.runtime.handover.prefill_engine", json.dumps(settings)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "it did not start"
        yield Elsewhere(msgspec.json.decode(line, type=PrefillEngine))
        process.stdin.close()
        assert process.wait(PATIENCE_SECONDS) == 0


@contextmanager
def pair(backend: str, **settings: Any) -> Iterator[tuple[RunningEngine, RunningEngine]]:
    """A prefill and a decode engine."""
    with (
        running("prefill", backend, **settings) as prefill,
        running("decode", backend, **settings) as decode,
    ):
        yield prefill, decode


def through(prefill: HasPrefill, requests: Sequence[Generate]) -> list[Generate]:
    """The requests as a decode engine gets them."""
    changed = {"prefill": prefill.ref(), "arrival_seconds": time.monotonic()}
    return [msgspec.structs.replace(one, **changed) for one in requests]
