"""What surrounds Mooncake's engine, with another engine in its place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from sluice_runtime.handover.transfer import mooncake_batch, mooncake_gate
from sluice_runtime.handover.transfer.backend import (
    MemoryPiece,
    OtherEpochError,
    PeerUnreachableError,
    TransferError,
    TransferTimeoutError,
)
from sluice_runtime.handover.transfer.mooncake import MooncakeBackend
from sluice_runtime.handover.transfer.mooncake_engine import LANES, _adapters

from tests.runtime.handover.transfer.memory_block import MemoryBlock
from tests.runtime.launch.processes import until

SIZE = 1 << 16
RUNNING = 0
BYTE, DEAD_BYTE = 1 << 40, 1 << 41


class FakeEngine:
    """`status_of` answers for a batch, by its number from 1. Bytes that nobody looks at go to the
    first memory that was registered, and are no batches of those."""

    def __init__(self, status_of: Callable[[int], int] = lambda batch: 1) -> None:
        self.status_of = status_of
        self.scratch: int | None = None
        self.registered: list[tuple[int, int]] = []
        self.submitted: list[tuple[str, int, int, int]] = []
        self.ended: list[int] = []
        self.probed: list[str] = []
        self.probe_code = 0
        self.probe_may_answer = threading.Event()
        self.probe_may_answer.set()
        self.opened: list[str] = []
        self.may_open = threading.Event()
        self.may_open.set()
        self.lanes_answer = True
        self.most_under_way = 0

    def initialize(self, host: str, metadata: str, protocol: str, device: str, /) -> int:
        return 0

    def get_rpc_port(self) -> int:
        return 15_555

    def get_local_topology(self) -> str:
        return "{}"

    def register_memory(self, address: int, length_bytes: int, /) -> int:
        if self.scratch is None:
            self.scratch = address
        else:
            self.registered.append((address, length_bytes))
        return 0

    def unregister_memory(self, address: int, /) -> int:
        return 0

    def send_probe(self, peer: str, /) -> int:
        self.probed.append(peer)
        self.probe_may_answer.wait(5)
        return self.probe_code

    def batch_transfer_async_read(
        self, peer: str, local: list[int], remote: list[int], lengths: list[int], /
    ) -> int:
        if local == [self.scratch]:
            self.opened.append(peer)
            self.may_open.wait(5)
            return BYTE if self.lanes_answer else DEAD_BYTE
        self.submitted.append((peer, local[0], remote[0], lengths[0]))
        self.most_under_way = max(self.most_under_way, len(self.submitted) - len(self.ended))
        return len(self.submitted)

    def transfer_check_status(self, batch: int, /) -> int:
        if batch in (BYTE, DEAD_BYTE):
            return 1 if batch == BYTE else -1
        assert batch not in self.ended, "it was freed: asking again would crash"
        status = self.status_of(batch)
        if status in (1, -1):
            self.ended.append(batch)
        return status


class Case:
    """Over RDMA, where connections are not looked after, unless said otherwise."""

    def __init__(self, *engines: FakeEngine, protocol: str = "rdma") -> None:
        self.engines = engines or (FakeEngine(),)
        to_start = iter(self.engines)
        self.memory = MemoryBlock(SIZE)
        self.backend = MooncakeBackend("10.0.0.9", protocol, start=lambda: next(to_start))
        self.backend.register(self.memory.address, SIZE)

    def read(self, session: str, pieces: int = 1, timeout_seconds: float = 5.0) -> None:
        local = self.memory.address
        all_pieces = [MemoryPiece(0x1000 + 2 * n, local + n, 1) for n in range(pieces)]
        self.backend.read(session, all_pieces, timeout_seconds)


def test_pieces_go_to_the_address_without_the_token() -> None:
    case = Case()
    case.read("10.0.0.1:15000#aa", pieces=2)
    local = case.memory.address
    assert case.engines[0].submitted == [
        ("10.0.0.1:15000", local, 0x1000, 1),
        ("10.0.0.1:15000", local + 1, 0x1002, 1),
    ]
    assert case.backend.session.startswith("10.0.0.9:15555#")


def test_a_bounded_number_of_pieces_is_under_way() -> None:
    case = Case()
    case.read("10.0.0.1:15000#aa", pieces=1500)
    assert case.engines[0].most_under_way == mooncake_batch.WINDOW
    assert len(case.engines[0].ended) == 1500


def test_a_failed_read_returns_when_every_piece_has_ended() -> None:
    """The ninth fails at once; the others end when they have been asked for a third time."""
    asked: list[int] = []

    def status(batch: int) -> int:
        asked.append(batch)
        if batch == 9:
            return -1
        return 1 if asked.count(batch) == 3 else RUNNING

    case = Case(FakeEngine(status))
    with pytest.raises(TransferError, match="Mooncake: reading 40 bytes in 40 pieces") as caught:
        case.read("10.0.0.1:15000#aa", pieces=40)
    assert not caught.value.may_still_land
    engine = case.engines[0]
    assert sorted(engine.ended) == list(range(1, len(engine.submitted) + 1))
    assert len(engine.submitted) < 9 + mooncake_batch.WINDOW


def test_pieces_that_do_not_end_may_still_land(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake_batch, "SETTLE_SECONDS", 0.02)
    case = Case(FakeEngine(lambda batch: 1 if batch == 1 else -2))
    with pytest.raises(TransferTimeoutError, match="2 pieces may still land") as caught:
        case.read("10.0.0.1:15000#aa", pieces=3, timeout_seconds=0.02)
    assert caught.value.may_still_land


def test_a_peer_is_probed_once_and_again_after_a_failure() -> None:
    engine = FakeEngine(lambda batch: -1 if batch == 3 else 1)
    case = Case(engine)
    case.read("10.0.0.1:15000#aa")
    case.read("10.0.0.1:15000#aa")
    assert engine.probed == ["10.0.0.1:15000"]
    with pytest.raises(TransferError):
        case.read("10.0.0.1:15000#aa")
    case.read("10.0.0.1:15000#aa")
    assert len(engine.probed) == 2


def test_a_peer_that_does_not_answer_is_not_read() -> None:
    engine = FakeEngine()
    engine.probe_code = -102
    case = Case(engine)
    with pytest.raises(PeerUnreachableError, match=r"does not answer \(Mooncake's code -102\)"):
        case.read("10.0.0.1:15000#aa")
    engine.probe_code = 0
    case.read("10.0.0.1:15000#aa")
    assert len(engine.submitted) == 1


def test_a_frozen_peer_keeps_one_thread_however_often_it_is_read() -> None:
    engine = FakeEngine()
    engine.probe_may_answer.clear()
    case = Case(engine)
    for _ in range(3):
        with pytest.raises(TransferTimeoutError) as caught:
            case.read("10.0.0.1:15000#aa", timeout_seconds=0.01)
        assert not caught.value.may_still_land
    assert len(engine.probed) == 1
    engine.probe_may_answer.set()
    case.read("10.0.0.1:15000#aa")


def test_an_address_that_came_back_in_another_epoch_gets_another_engine() -> None:
    """The first one remembers where the old process had its memory."""
    first, second = FakeEngine(), FakeEngine()
    case = Case(first, second)
    case.read("10.0.0.1:15000#aa")
    case.read("10.0.0.1:15000#bb")
    case.read("10.0.0.2:15000#cc")
    assert [peer for peer, *_ in second.submitted] == ["10.0.0.1:15000"]
    assert second.registered == [(case.memory.address, SIZE)]
    assert [peer for peer, *_ in first.submitted] == ["10.0.0.1:15000", "10.0.0.2:15000"]
    with pytest.raises(OtherEpochError, match="in 1 piece: another process"):
        case.read("10.0.0.1:15000#aa")
    more = MemoryBlock(SIZE)
    case.backend.register(more.address, SIZE)
    assert first.registered[-1] == second.registered[-1] == (more.address, SIZE)


def test_a_peer_that_freezes_behind_its_probe_keeps_nobody_from_reading_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither those that are known already nor new ones, which another engine reads."""
    monkeypatch.setattr(mooncake_gate, "STUCK_SECONDS", 0.1)
    first, second = FakeEngine(), FakeEngine()
    case = Case(first, second)
    case.read("10.0.0.1:15000#aa")
    first.may_open.clear()
    with pytest.raises(TransferTimeoutError):
        case.read("10.0.0.2:15000#bb", timeout_seconds=0.01)
    case.read("10.0.0.1:15000#aa")
    case.read("10.0.0.3:15000#cc")
    assert [peer for peer, *_ in second.submitted] == ["10.0.0.1:15000", "10.0.0.3:15000"]
    assert second.registered == [(case.memory.address, SIZE)]
    first.may_open.set()
    until(lambda: not case.backend._peers[0].stuck)
    case.read("10.0.0.2:15000#bb")
    assert [peer for peer, *_ in first.submitted] == ["10.0.0.1:15000", "10.0.0.2:15000"]


def test_a_read_that_runs_when_its_engine_gets_stuck_goes_on_with_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mooncake_gate, "STUCK_SECONDS", 0.01)
    freezing = threading.Thread(target=lambda: case.read("10.0.0.2:15000#bb"))

    def status(batch: int) -> int:
        if batch == 5:
            first.may_open.clear()
            freezing.start()
            while "10.0.0.2:15000" not in first.opened:
                time.sleep(0.001)
        return 1

    first, second = FakeEngine(status), FakeEngine()
    case = Case(first, second)
    case.read("10.0.0.1:15000#aa", pieces=2 * mooncake_batch.WINDOW)
    assert len(second.submitted) == 2 * mooncake_batch.WINDOW
    assert sorted(first.ended) == list(range(1, len(first.submitted) + 1))
    first.may_open.set()
    freezing.join()


def test_connections_to_peers_that_are_gone_are_used_once_more_so_that_they_are_closed() -> None:
    engine = FakeEngine()
    case = Case(engine, protocol="tcp")
    case.read("10.0.0.1:15000#aa")
    engine.lanes_answer = False
    with pytest.raises(PeerUnreachableError):
        case.read("10.0.0.2:15000#bb")
    until(lambda: engine.opened.count("10.0.0.1:15000") == 1 + LANES)
    until(lambda: "kv-sweep" not in [thread.name for thread in threading.enumerate()])
    engine.lanes_answer = True
    case.read("10.0.0.3:15000#cc")
    case.read("10.0.0.1:15000#aa")
    assert engine.opened.count("10.0.0.1:15000") == 1 + LANES, "not asked as long as it is gone"
    assert engine.probed.count("10.0.0.1:15000") == 2, "but when it is read again"


def test_adapters_are_found_in_the_topology() -> None:
    assert not _adapters('{"cpu:0": [[], []]}')
    assert not _adapters("")
    assert _adapters('{"cpu:0": [[], []], "cuda:0": [["mlx5_0"], []]}')
