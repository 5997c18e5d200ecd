"""Backend TCP: our own implementation, and the readable reference for other backends.

A read is one request, on a connection that is kept for the next read. After any error the
connection is closed at once, so that no bytes can arrive later.
"""

from __future__ import annotations

import secrets
import select
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from sluice_runtime.handover.transfer.backend import (
    MAX_DESCRIPTORS,
    MemoryPiece,
    NotRegisteredError,
    OtherEpochError,
    PeerUnreachableError,
    TransferError,
    TransferTimeoutError,
    describe,
)
from sluice_runtime.handover.transfer.registered import RegisteredMemory
from sluice_runtime.handover.transfer.tcp_server import TcpServer
from sluice_runtime.handover.transfer.tcp_wire import (
    TOKEN_BYTES,
    ReplyStatus,
    pack_request,
    receive,
    receive_into,
    remaining,
)

MAX_IDLE: Final = 8
"""Most idle connections that are kept for one peer."""
MAX_PEERS: Final = 64
"""Most peers with idle connections; beyond it, those of the least recently used peers are
closed."""


class TcpBackend:
    """Backend that serves reads from the constructor until `close`."""

    name: Final = "TCP"
    is_authenticated: Final = True
    reaches_devices: Final = False

    def __init__(self, host: str) -> None:
        token = secrets.token_bytes(TOKEN_BYTES)
        self._memory = RegisteredMemory()
        self._server = TcpServer(host, token, self._memory)
        self._session = f"{host}:{self._server.port}#{token.hex()}"
        self._connections = IdleConnections()
        self._reading: dict[int, socket.socket] = {}
        """Socket of each running read, by the first address of ours that it fills and no other read
        fills."""

    @property
    def session(self) -> str:
        return self._session

    def register(self, address: int, length_bytes: int) -> None:
        self._memory.add(address, length_bytes)

    def read(self, session: str, pieces: Sequence[MemoryPiece], timeout_seconds: float) -> None:
        what = describe(self.name, pieces)
        deadline = time.monotonic() + timeout_seconds
        try:
            token = token_of(session)
            views = [self._memory.view(piece.local_address, piece.length_bytes) for piece in pieces]
            for start in range(0, len(pieces), MAX_DESCRIPTORS):
                some = slice(start, start + MAX_DESCRIPTORS)
                ranges = [(piece.remote_address, piece.length_bytes) for piece in pieces[some]]
                connection = self._connections.take(session, deadline)
                self._reading[pieces[0].local_address] = connection
                _read(connection, token, ranges, views[some], deadline)
                self._connections.give_back(session, connection)
        except TransferError as error:
            raise type(error)(f"{what}: {error}") from error
        except TimeoutError as error:
            raise TransferTimeoutError(f"{what}: not done after {timeout_seconds} s") from error
        except OSError as error:
            raise PeerUnreachableError(f"{what}: {error}") from error
        finally:
            if pieces:
                self._reading.pop(pieces[0].local_address, None)

    def interrupt(self, pieces: Sequence[MemoryPiece]) -> None:
        if pieces and (connection := self._reading.get(pieces[0].local_address)):
            with suppress(OSError):  # it was closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connections.close()
        self._server.close()


def _read(
    connection: socket.socket,
    token: bytes,
    ranges: Sequence[tuple[int, int]],
    views: Sequence[memoryview],
    deadline: float,
) -> None:
    """Reads `ranges` into `views`; closes the connection after any error."""
    try:
        connection.settimeout(remaining(deadline))
        connection.sendall(pack_request(token, ranges))
        _check(receive(connection, 1, deadline)[0])
        for view in views:
            receive_into(connection, view, deadline)
    except BaseException:
        connection.close()
        raise


class IdleConnections:
    """Idle connections, between two reads. One reader at a time takes a connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: defaultdict[str, list[socket.socket]] = defaultdict(list)
        self._closed = False

    def take(self, session: str, deadline_seconds: float) -> socket.socket:
        """An idle connection that the peer has not closed, or else a new one."""
        while True:
            with self._lock:
                connection = self._idle[session].pop() if self._idle.get(session) else None
            if connection is None:
                self._close_dead()
                return connect(session, deadline_seconds)
            if not _readable(connection):
                return connection
            connection.close()  # the peer closed it: it sends nothing else between two requests

    def give_back(self, session: str, connection: socket.socket) -> None:
        with self._lock:
            idle = self._idle.pop(session, [])
            if self._closed or len(idle) >= MAX_IDLE:
                connection.close()
            else:
                idle.append(connection)
            self._idle[session] = idle  # the last entry is the most recently used
            for stale in list(islice(self._idle, max(0, len(self._idle) - MAX_PEERS))):
                _close_all(self._idle.pop(stale))

    def _close_dead(self) -> None:
        """Closes connections that their peers have closed. Otherwise they would stay open here
        until the peer is read again, perhaps never."""
        with self._lock:
            for session, idle in list(self._idle.items()):
                dead = [connection for connection in idle if _readable(connection)]
                _close_all(dead)
                self._idle[session] = [each for each in idle if each not in dead]
                if not self._idle[session]:
                    del self._idle[session]

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for idle in self._idle.values():
                _close_all(idle)
            self._idle.clear()


def connect(session: str, deadline_seconds: float) -> socket.socket:
    host, _, port = session.partition("#")[0].rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=remaining(deadline_seconds))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def token_of(session: str) -> bytes:
    """
    Raises:
        OtherEpochError: the text is not a session of this backend.
    """
    try:
        token = bytes.fromhex(session.partition("#")[2])
    except ValueError:
        token = b""
    if len(token) != TOKEN_BYTES or not session.partition("#")[0].rpartition(":")[2].isdecimal():
        raise OtherEpochError("not a session of backend TCP; allowed: HOST:PORT#TOKEN")
    return token


def _check(status: int) -> None:
    if status == ReplyStatus.OTHER_EPOCH:
        raise OtherEpochError("another process has this address now")
    if status == ReplyStatus.NOT_REGISTERED:
        raise NotRegisteredError("the peer has not registered all of these addresses")
    if status != ReplyStatus.OK:
        raise TransferError(f"the peer answered with status {status}")


def _readable(connection: socket.socket) -> bool:
    """Whether there is something to read; unlike `select`, works for descriptors above 1,023."""
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(0))


def _close_all(connections: Sequence[socket.socket]) -> None:
    for connection in connections:
        connection.close()
