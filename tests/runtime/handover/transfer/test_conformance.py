"""What every transfer backend must do. All but Memory read from another process; NIXL does over
TCP, which only tests can select."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sluice_runtime.handover.transfer.backend import (
    MAX_DESCRIPTORS,
    MemoryPiece,
    NotRegisteredError,
    TransferBackend,
    TransferError,
)
from sluice_runtime.handover.transfer.mooncake import MooncakeBackend
from sluice_runtime.handover.transfer.mooncake_engine import LANES, start_engine

from tests.busy_machine import Stopwatch
from tests.patience import PATIENCE_SECONDS
from tests.runtime.handover.transfer.peers import SIZE, Peer, ProcessPeer, Setting

TIMEOUT_SECONDS = 20.0
REST_SECONDS = 0.5
OTHER_PROCESS = [
    pytest.param("Mooncake", marks=pytest.mark.process),
    pytest.param("TCP", marks=pytest.mark.process),
    pytest.param("NIXL", marks=pytest.mark.process),
]
EVERY = [*OTHER_PROCESS, "Memory"]
ENDS_READS = OTHER_PROCESS[:2]
"""Of NIXL, which does not, see test_nixl.py."""


@pytest.fixture(scope="module")
def setting(request: pytest.FixtureRequest) -> Iterator[Setting]:
    made = Setting(request.param)
    yield made
    made.close()


class Reader:
    """Memory to read into, and a backend."""

    def __init__(self, setting: Setting, backend: TransferBackend | None = None) -> None:
        self.memory = setting.block()
        self.backend = backend or setting.lasting_backend
        self.backend.register(self.memory.address, SIZE)

    def read(
        self,
        peer: Peer,
        ranges: list[tuple[int, int, int]],
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """Ranges: (offset there, offset here, length)."""
        pieces = [
            MemoryPiece(peer.address + there, self.memory.address + here, length)
            for there, here, length in ranges
        ]
        self.backend.read(peer.session, pieces, timeout_seconds)

    def read_all(self, peer: Peer, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        step = 64 << 10
        self.read(peer, [(at, at, step) for at in range(0, SIZE, step)], timeout_seconds)

    def read_all_again(self, peer: Peer) -> None:
        """After a failure: for some milliseconds Mooncake may fail while it connects anew."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                return self.read_all(peer)
            except TransferError:
                if time.monotonic() > deadline:
                    raise


def scattered(count: int, length: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """Pieces of which none is beside another one, nor in the same order here and there."""
    draw = random.Random(seed)
    there = draw.sample(range(SIZE // (2 * length)), count)
    here = draw.sample(range(SIZE // (2 * length)), count)
    return [(2 * length * a, 2 * length * b, length) for a, b in zip(there, here, strict=True)]


@pytest.mark.parametrize("setting", EVERY, indirect=True)
def test_bytes_arrive_where_they_belong_and_nowhere_else(setting: Setting) -> None:
    peer, reader = setting.lasting, Reader(setting)
    cases = [
        [(0, 0, 1)],
        [(3, 5, 4095)],
        [(SIZE - 65_537, 1, 65_537)],
        [(0, 0, SIZE)],
        scattered(7, 4097),
        scattered(MAX_DESCRIPTORS + 501, 701),
    ]
    for ranges in cases:
        reader.memory.fill(bytes(SIZE))
        reader.read(peer, ranges)
        expected = bytearray(SIZE)
        for there, here, length in ranges:
            expected[here : here + length] = peer.contents[there : there + length]
        assert reader.memory.bytes_at(0, SIZE) == expected, f"{len(ranges)} pieces"
    reader.read(peer, [])


@pytest.mark.parametrize("setting", EVERY, indirect=True)
def test_several_readers_of_several_peers_at_once(setting: Setting) -> None:
    peers = [setting.lasting, setting.peer(2)]
    readers = [Reader(setting), Reader(setting, setting.backend())]
    pairs = [(readers[0], peers[0]), (readers[1], peers[0]), (readers[1], peers[1])]
    halves = SIZE // 2
    failures: list[Exception] = []

    def work(number: int) -> None:
        reader, peer = pairs[number]
        here = halves * (number == 2)
        length = halves // 300
        try:
            for _ in range(5):
                reader.read(peer, [(n * length, here + n * length, length) for n in range(300)])
                got = reader.memory.bytes_at(here, 300 * length)
                assert got == peer.contents[: 300 * length]
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("setting", EVERY, indirect=True)
def test_a_peer_that_dies_while_it_is_read_is_an_error_within_seconds(setting: Setting) -> None:
    peer, reader = setting.peer(), Reader(setting)
    under_way = threading.Event()

    def kill() -> None:
        under_way.wait()
        peer.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    began, watch = time.monotonic(), Stopwatch()

    def read_until_it_fails() -> None:
        while time.monotonic() < began + TIMEOUT_SECONDS:
            reader.read_all(peer)
            under_way.set()

    with pytest.raises(TransferError) as caught:
        read_until_it_fails()
    killer.join()
    assert watch.seconds < 10
    assert not caught.value.may_still_land
    with pytest.raises(TransferError, match=rf"^{setting.name}: reading 4194304 bytes in 64 pie"):
        reader.read_all(peer)


@pytest.mark.parametrize("setting", EVERY, indirect=True)
def test_only_registered_memory_is_read_and_written(setting: Setting) -> None:
    peer, reader = setting.lasting, Reader(setting)
    for there in (-1, SIZE, SIZE - 99, 1 << 40):
        with pytest.raises(TransferError) as caught:
            reader.read(peer, [(0, 0, 50), (there, 200, 100)])
        assert not caught.value.may_still_land
        assert reader.memory.bytes_at(200, 100) == bytes(100)
    for here in (-1, SIZE, SIZE - 99):
        with pytest.raises(NotRegisteredError):
            reader.read(peer, [(0, here, 100)])
    reader.read_all_again(peer)  # a refusal ends nothing but its read
    assert reader.memory.bytes_at(0, SIZE) == peer.contents


@pytest.mark.parametrize("setting", EVERY, indirect=True)
def test_what_is_said_of_authentication_is_so(setting: Setting) -> None:
    """A reader that has our address and another token."""
    peer, reader = setting.lasting, Reader(setting, setting.backend())
    address, _, token = peer.session.partition("#")
    forged = f"{address}#{'0' * len(token)}"
    piece = MemoryPiece(peer.address, reader.memory.address, 100)
    if reader.backend.is_authenticated:
        with pytest.raises(TransferError):
            reader.backend.read(forged, [piece], TIMEOUT_SECONDS)
        assert reader.memory.bytes_at(0, 100) == bytes(100)
    else:
        reader.backend.read(forged, [piece], TIMEOUT_SECONDS)
        assert reader.memory.bytes_at(0, 100) == peer.contents[:100]


@pytest.mark.parametrize("setting", EVERY, indirect=True)
def test_memory_that_cannot_be_registered_is_an_error(setting: Setting) -> None:
    backend = setting.lasting_backend
    for address, length in ((0, 4096), (4096, 0), (4096, -1)):
        with pytest.raises(NotRegisteredError, match="register"):
            backend.register(address, length)


@pytest.mark.parametrize("setting", EVERY, indirect=True)
def test_after_a_restart_in_place_the_old_session_is_refused_and_the_new_one_read(
    setting: Setting,
) -> None:
    reader, old = Reader(setting), setting.peer(1)
    reader.read_all(old)
    old.kill()
    new = setting.peer(2)
    assert new.session != old.session
    with pytest.raises(TransferError):
        reader.read_all(old)
    reader.read_all(new)
    assert reader.memory.bytes_at(0, SIZE) == new.contents
    with pytest.raises(TransferError):
        reader.read_all(old)
    assert reader.memory.bytes_at(0, SIZE) == new.contents


@pytest.mark.parametrize("setting", OTHER_PROCESS, indirect=True)
def test_neither_descriptors_nor_threads_grow_with_reads(setting: Setting) -> None:
    peer, reader = setting.process(), Reader(setting, setting.backend())

    def some_reads(count: int) -> None:
        for _ in range(count):
            reader.read(peer, [(8192 * n, 8192 * n, 4096) for n in range(16)])

    def counts() -> tuple[int, int, int]:
        return descriptors(), threads(), peer.descriptors

    some_reads(20)
    before = at_rest(counts)
    some_reads(200)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while counts() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counts() == before


@pytest.mark.parametrize("setting", OTHER_PROCESS, indirect=True)
def test_neither_descriptors_nor_threads_grow_with_dead_peers(setting: Setting) -> None:
    """Each of them is closed on our side, too, at the latest when another peer is new. Of the
    first one, not every connection need have been open when they were counted."""
    reader = Reader(setting, setting.backend())
    reader.read_all(first := setting.process(0))
    before = descriptors(), threads()
    for seed in range(1, 5):
        first.kill()
        reader.read_all(first := setting.process(seed))
        assert reader.memory.bytes_at(0, SIZE) == first.contents
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while descriptors() > before[0] + LANES or threads() > before[1]:
        assert time.monotonic() < deadline, f"{before}, now {(descriptors(), threads())}"
        time.sleep(0.01)


@pytest.mark.parametrize("setting", ENDS_READS, indirect=True)
def test_nothing_lands_after_a_read_of_a_frozen_peer_has_failed(setting: Setting) -> None:
    peer, reader = setting.process(), Reader(setting)
    step = SIZE // 16
    whole = [(at, at, step) for at in range(0, SIZE, step)]
    reader.read(peer, whole)
    reader.memory.fill(bytes(SIZE))
    peer.freeze()
    watch = Stopwatch()
    with pytest.raises(TransferError) as caught:
        reader.read(peer, whole, timeout_seconds=1)
    assert watch.seconds < 10
    assert not caught.value.may_still_land
    after_error = reader.memory.bytes_at(0, SIZE)
    peer.thaw()
    other = Reader(setting, setting.backend())
    other.read_all(peer)  # the peer has had time to send what it still would
    assert reader.memory.bytes_at(0, SIZE) == after_error
    assert after_error != peer.contents
    reader.read_all_again(peer)
    assert reader.memory.bytes_at(0, SIZE) == peer.contents


@pytest.mark.parametrize("setting", OTHER_PROCESS, indirect=True)
def test_a_peer_that_is_frozen_at_first_contact_keeps_nobody_from_reading_of_others(
    setting: Setting,
) -> None:
    reader, frozen, well = Reader(setting), setting.process(1), setting.lasting
    frozen.freeze()
    watch = Stopwatch()
    with pytest.raises(TransferError, match=r"1\.\d s|after 1"):
        reader.read_all(frozen, timeout_seconds=1)
    reader.read_all(well)
    assert watch.seconds < 5
    assert reader.memory.bytes_at(0, SIZE) == well.contents


class FreezingEngine:
    """Mooncake's engine; `peer` is frozen as soon as it has answered the probe."""

    def __init__(self) -> None:
        self._engine = start_engine("127.0.0.1", "tcp", None)
        self.peer: ProcessPeer | None = None

    def send_probe(self, address: str, /) -> int:
        code = self._engine.send_probe(address)
        if self.peer is not None and self.peer.session.startswith(address):
            self.peer.freeze()
        return code

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@pytest.mark.process
def test_a_peer_that_freezes_behind_its_probe_keeps_nobody_from_reading_of_others() -> None:
    """Mooncake would hold a lock of all reads for a minute."""
    setting = Setting("Mooncake")
    started: list[FreezingEngine] = []

    def start() -> FreezingEngine:
        started.append(FreezingEngine())
        return started[-1]

    backend = MooncakeBackend("127.0.0.1", start=start)
    try:
        reader, frozen = Reader(setting, backend), setting.process(1)
        known, new = setting.process(2), setting.process(3)
        reader.read_all(known)
        started[0].peer = frozen
        watch = Stopwatch()
        with pytest.raises(TransferError, match=r"1\.\d s|after 1"):
            reader.read_all(frozen, timeout_seconds=1)
        for well in (known, new):
            reader.read_all(well)
            assert reader.memory.bytes_at(0, SIZE) == well.contents
        assert watch.seconds < 20, "a minute, if they waited for it"
        frozen.thaw()
        reader.read_all_again(frozen)
        assert reader.memory.bytes_at(0, SIZE) == frozen.contents
        assert len(started) == 2
    finally:
        backend.close()
        setting.close()


def at_rest(counts: Callable[[], tuple[int, ...]]) -> tuple[int, ...]:
    """The counts once they have stayed as they are for a while: Mooncake starts threads late."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    found, since = counts(), time.monotonic()
    while (now := time.monotonic()) < since + REST_SECONDS:
        assert now < deadline, found
        if (later := counts()) != found:
            found, since = later, now
        time.sleep(0.01)
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))
