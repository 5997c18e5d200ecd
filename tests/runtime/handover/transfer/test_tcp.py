"""What backend TCP refuses, and what it does with connections."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from sluice_contract.cluster.ports import KV_TRANSFER_MAX, KV_TRANSFER_MIN
from sluice_runtime.handover.transfer import tcp, tcp_server, tcp_wire
from sluice_runtime.handover.transfer.backend import (
    MemoryPiece,
    OtherEpochError,
    PeerUnreachableError,
    TransferError,
    TransferTimeoutError,
)
from sluice_runtime.handover.transfer.landing import DirectLanding
from sluice_runtime.handover.transfer.reader import PageReader
from sluice_runtime.handover.transfer.reads import ReadJob
from sluice_runtime.handover.transfer.tcp import TcpBackend
from sluice_runtime.handover.transfer.tcp_wire import HEADER, MAGIC, RANGE, TOKEN_BYTES, ReplyStatus

from tests.patience import PATIENCE_SECONDS
from tests.runtime.handover.transfer.memory_block import MemoryBlock, contents

SIZE = 1 << 16


@pytest.fixture
def memory() -> MemoryBlock:
    block = MemoryBlock(SIZE)
    block.fill(contents(1, SIZE))
    return block


@pytest.fixture
def server(memory: MemoryBlock) -> Iterator[TcpBackend]:
    backend = TcpBackend("127.0.0.1")
    backend.register(memory.address, SIZE)
    yield backend
    backend.close()


@pytest.fixture
def reader() -> Iterator[TcpBackend]:
    backend = TcpBackend("127.0.0.1")
    yield backend
    backend.close()


def port_of(backend: TcpBackend) -> int:
    return int(backend.session.partition("#")[0].rpartition(":")[2])


def token_of(backend: TcpBackend) -> bytes:
    return bytes.fromhex(backend.session.partition("#")[2])


def ask(backend: TcpBackend, request: bytes) -> bytes:
    """All that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", port_of(backend)), timeout=5) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_it_listens_on_one_address_and_a_port_that_policies_let_through(server: TcpBackend) -> None:
    assert KV_TRANSFER_MIN <= port_of(server) <= KV_TRANSFER_MAX
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port_of(server)), timeout=5).close()


def test_without_the_token_nothing_is_read(server: TcpBackend, memory: MemoryBlock) -> None:
    ranges = RANGE.pack(memory.address, 100)
    wrong = HEADER.pack(MAGIC, bytes(TOKEN_BYTES), 1) + ranges
    assert ask(server, wrong) == bytes([ReplyStatus.OTHER_EPOCH])


@pytest.mark.parametrize(("magic", "count"), [(b"WRONG", 1), (MAGIC, 0), (MAGIC, 1025)])
def test_a_malformed_request_is_refused_before_its_ranges_come(
    server: TcpBackend, magic: bytes, count: int
) -> None:
    request = HEADER.pack(magic, token_of(server), count)
    assert ask(server, request) == bytes([ReplyStatus.MALFORMED])


def test_a_range_that_wraps_around_is_outside(server: TcpBackend, memory: MemoryBlock) -> None:
    for address, length in ((memory.address, 2**64 - 1), (2**64 - 1, 2), (memory.address, 0)):
        request = HEADER.pack(MAGIC, token_of(server), 1) + RANGE.pack(address, length)
        assert ask(server, request) == bytes([ReplyStatus.NOT_REGISTERED])


def test_a_session_of_another_epoch_is_refused(
    server: TcpBackend, reader: TcpBackend, memory: MemoryBlock
) -> None:
    local = MemoryBlock(SIZE)
    reader.register(local.address, SIZE)
    address = server.session.partition("#")[0]
    pieces = [MemoryPiece(memory.address, local.address, 100)]
    with pytest.raises(OtherEpochError, match="in 1 piece: another process has this address"):
        reader.read(f"{address}#{'00' * TOKEN_BYTES}", pieces, 5)
    for session in ("", address, f"{address}#zz", f"127.0.0.1:#{'00' * TOKEN_BYTES}"):
        with pytest.raises(OtherEpochError, match="not a session of backend TCP"):
            reader.read(session, pieces, 5)
    assert local.bytes_at(0, 100) == bytes(100)


def test_a_connection_that_the_server_closed_meanwhile_costs_no_read(
    server: TcpBackend, reader: TcpBackend, memory: MemoryBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_server, "IDLE_SECONDS", 0.05)
    local = MemoryBlock(SIZE)
    reader.register(local.address, SIZE)
    pieces = [MemoryPiece(memory.address, local.address, SIZE)]
    reader.read(server.session, pieces, 5)
    deadline = time.monotonic() + 5
    while server._server._connections and time.monotonic() < deadline:
        next(iter(server._server._connections.values())).join(5)
    reader.read(server.session, pieces, 5)
    assert local.bytes_at(0, SIZE) == memory.bytes_at(0, SIZE)


def test_more_connections_than_allowed_are_closed(
    server: TcpBackend, reader: TcpBackend, memory: MemoryBlock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_server, "MAX_CONNECTIONS", 0)
    local = MemoryBlock(SIZE)
    reader.register(local.address, SIZE)
    with pytest.raises(PeerUnreachableError):
        reader.read(server.session, [MemoryPiece(memory.address, local.address, 1)], 5)


def test_a_read_of_a_frozen_peer_ends_when_nobody_wants_it(reader: TcpBackend) -> None:
    ours = MemoryBlock(SIZE)
    reader.register(ours.address, SIZE)
    finished = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        session = f"127.0.0.1:{frozen.getsockname()[1]}#{'00' * TOKEN_BYTES}"
        pages = PageReader(DirectLanding(reader), finished.set)
        try:
            pages.submit(ReadJob(1, session, (MemoryPiece(0, ours.address, SIZE),), None, 60.0))
            connection, _ = frozen.accept()
            with connection:
                assert connection.recv(1)  # it waits for an answer
                pages.cancel(2)
                assert not finished.wait(0.05)
                pages.cancel(1)
                assert finished.wait(PATIENCE_SECONDS)
        finally:
            pages.close()
    [result] = pages.finished()
    assert isinstance(result.error, PeerUnreachableError)
    assert not result.error.may_still_land


class TricklingPeer:
    """The other end, and the clock of the reader: a byte comes with each look at it."""

    def __init__(self, listener: socket.socket) -> None:
        listener.settimeout(0.0)
        self._listener = listener
        self._connection: socket.socket | None = None
        self.seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 0.02
        assert self.seconds < 60.0, "it goes on for as long as bytes come"
        if self._connection is None:
            with suppress(BlockingIOError):
                self._connection, _ = self._listener.accept()
                self._connection.sendall(bytes([ReplyStatus.OK]))
        if self._connection is not None:
            self._connection.sendall(b"x")
        return self.seconds

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def test_a_peer_that_trickles_is_given_up_at_the_deadline(
    reader: TcpBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes in time, but not all of them."""
    local = MemoryBlock(SIZE)
    reader.register(local.address, SIZE)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        closing(TricklingPeer(listener)) as peer,
    ):
        session = f"127.0.0.1:{listener.getsockname()[1]}#{'00' * TOKEN_BYTES}"
        for module in (tcp, tcp_wire):
            monkeypatch.setattr(module, "time", peer)
        with pytest.raises(TransferTimeoutError, match=r"not done after 2 s") as caught:
            reader.read(session, [MemoryPiece(1, local.address, SIZE)], 2)
        assert local.bytes_at(0, 50) == b"x" * 50, "nothing came"
        assert peer.seconds < 2.1
    assert not caught.value.may_still_land


def test_a_reply_of_a_status_that_is_unknown_is_an_error(reader: TcpBackend) -> None:
    local = MemoryBlock(SIZE)
    reader.register(local.address, SIZE)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"\xff")
                connection.recv(4096)

        thread = threading.Thread(target=answer)
        thread.start()
        session = f"127.0.0.1:{listener.getsockname()[1]}#{'00' * TOKEN_BYTES}"
        with pytest.raises(TransferError, match="answered with status 255"):
            reader.read(session, [MemoryPiece(1, local.address, 1)], 5)
        thread.join()
