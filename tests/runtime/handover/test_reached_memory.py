"""What somebody reaches who has no part in a service, but Mooncake's ports: never the pages that
answers are made from."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest
import torch
from sluice_runtime.engine.pool_transport import DECODE_BLOCKS, PoolTransport, staged, transport_of
from sluice_runtime.handover.transfer.backend import TransferBackend
from sluice_runtime.handover.transfer.reader import WORKERS
from sluice_runtime.kv.host_blocks import BlockCounts, HostBlocks
from sluice_runtime.kv.pool import PagePool

from tests.runtime.handover.engines import RunningEngine, running, through
from tests.runtime.handover.test_two_engines import prompt, same
from tests.runtime.harness import generate
from tests.runtime.launch.processes import until

pytestmark = pytest.mark.process


@dataclass
class Connected:
    """Connects an engine, and knows where its memory is."""

    connect: Callable[[PagePool, TransferBackend], PoolTransport]
    transports: list[PoolTransport] = field(default_factory=list)

    def __call__(self, pool: PagePool, backend: TransferBackend) -> PoolTransport:
        self.transports.append(self.connect(pool, backend))
        return self.transports[0]

    @contextmanager
    def stranger(self, address: int, length_bytes: int) -> Iterator[dict[str, bool]]:
        """A process that writes there all the time, and what went through at first."""
        peer = self.transports[0].memory.session.partition("#")[0]
        module = "tests.runtime.handover.transfer.stranger"
        words = [sys.executable, "-m", module, peer, str(address), str(length_bytes)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            yield msgspec.json.decode(process.stdout.readline())
            process.stdin.close()


def test_a_stranger_neither_reads_nor_writes_the_pages_of_an_engine() -> None:
    as_an_engine = partial(transport_of, counts=DECODE_BLOCKS)
    theirs, ours = Connected(as_an_engine), Connected(as_an_engine)
    asked = [generate("first", prompt(300), 8), generate("again", prompt(300), 8)]
    with (
        running("prefill", "Mooncake", connect=theirs) as prefill,
        running("decode", "Mooncake", connect=ours) as decode,
    ):
        first = decode.answers(through(prefill, asked[:1]))["first"]
        for connected, engine in ((theirs, prefill), (ours, decode)):
            until(partial(is_at_rest, engine))
            before = bytes_of(engine).clone()
            pool = engine.engine.pool
            with connected.stranger(pool.address, before.numel()) as went_through:
                assert went_through == {"reads": False, "writes": False}
            assert bytes_of(engine).equal(before)
        again = decode.answers(through(prefill, asked[1:]))["again"]
    assert again.deltas[0].cached_tokens > 0
    same(first, again)


def is_at_rest(engine: RunningEngine) -> bool:
    """Whether all pages were given back. Those of a transfer are poisoned at that moment."""
    status = engine.engine.scheduler.status()
    return status.pages_available == status.pages_total


def bytes_of(engine: RunningEngine) -> torch.Tensor:
    pool = engine.engine.pool
    return pool.data.view(torch.uint8).view(-1)[: pool.pages * pool.page_bytes]


@pytest.mark.parametrize("of", ["prefill", "decode"])
def test_what_a_stranger_writes_where_pages_pass_through_changes_no_answer(of: str) -> None:
    """Requests may be refused by it."""
    connected = {role: Connected(through_small_blocks) for role in ("prefill", "decode")}
    asked = [generate(f"r{number}", prompt(300, number), 8, logprobs=1) for number in range(20)]
    with running("mixed") as engine:
        expected = engine.answers(asked)
    with (
        running("prefill", "Mooncake", connect=connected["prefill"]) as prefill,
        running("decode", "Mooncake", connect=connected["decode"]) as decode,
    ):
        memory = connected[of].transports[0].memory
        length_bytes = memory.pages * memory.page_bytes
        with connected[of].stranger(memory.pool_address, length_bytes) as went_through:
            assert went_through == {"reads": True, "writes": True}
            answers = decode.answers(through(prefill, asked))
        for name, answer in answers.items():
            if answer.end.refusal is None:
                same(expected[name], answer)
            else:
                assert "checksum" in str(answer.end.error)
        after = generate("after", prompt(300), 8, logprobs=1)
        same(expected["r0"], decode.answers(through(prefill, [after]))["after"])


def through_small_blocks(pool: PagePool, backend: TransferBackend) -> PoolTransport:
    return staged(pool, backend, HostBlocks(pool, BlockCounts(WORKERS), 4 * pool.page_bytes))
