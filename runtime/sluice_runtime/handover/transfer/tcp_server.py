"""Serves ranges of registered memory, and nothing else, to peers that know this process's token.

One thread accepts connections; each connection has its own thread. Knows no pages.
"""

from __future__ import annotations

import hmac
import logging
import random
import socket
import threading
import time
from contextlib import suppress
from typing import Final

from sluice_contract.cluster.ports import KV_TRANSFER_MAX, KV_TRANSFER_MIN

from sluice_runtime.errors import StartupError
from sluice_runtime.handover.transfer.backend import MAX_DESCRIPTORS, NotRegisteredError
from sluice_runtime.handover.transfer.registered import RegisteredMemory
from sluice_runtime.handover.transfer.tcp_wire import (
    HEADER,
    RANGE,
    MalformedError,
    ReplyStatus,
    receive,
    send,
    unpack_header,
    unpack_ranges,
)

MAX_CONNECTIONS: Final = 256
IDLE_SECONDS: Final = 300.0
"""Time without a request after which a connection is closed; clients connect again."""
STALL_SECONDS: Final = 10.0
"""Time without progress after which a peer is dropped."""
PORTS_TRIED: Final = 64

logger = logging.getLogger("sluice.handover.tcp")


class TcpServer:
    """Listens from the constructor until `close`."""

    def __init__(self, host: str, token: bytes, memory: RegisteredMemory) -> None:
        self._token = token
        self._memory = memory
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._closing = threading.Event()
        self._listener = listen(host)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="kv-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._thread.join()
        self._listener.close()
        with self._lock:
            connections = dict(self._connections)
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in connections.values():
            thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError as error:
                if not self._closing.wait(0.1):  # out of descriptors, for example
                    logger.warning("cannot accept a connection: %s", error)
                continue
            self._start(connection)

    def _start(self, connection: socket.socket) -> None:
        with self._lock:
            if len(self._connections) >= MAX_CONNECTIONS:
                logger.warning("refused a connection: %d are open", MAX_CONNECTIONS)
                connection.close()
                return
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="kv-serve", daemon=True
            )
            self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while self._answer(connection):
                pass
        except OSError as error:
            logger.debug("a connection ended: %s", error)
        except Exception:
            logger.exception("a connection failed")
        finally:
            with self._lock:
                del self._connections[connection]
            connection.close()

    def _answer(self, connection: socket.socket) -> bool:
        """Serves one request; returns False if it was refused."""
        header = receive(connection, HEADER.size, time.monotonic() + IDLE_SECONDS)
        deadline = time.monotonic() + STALL_SECONDS
        try:
            token, count = unpack_header(header, MAX_DESCRIPTORS)
            ranges = unpack_ranges(receive(connection, count * RANGE.size, deadline))
            if not hmac.compare_digest(token, self._token):
                return _refuse(connection, ReplyStatus.OTHER_EPOCH)
            views = [self._memory.view(*each) for each in ranges]
        except MalformedError as error:
            logger.warning("malformed request: %s", error)
            return _refuse(connection, ReplyStatus.MALFORMED)
        except NotRegisteredError as error:
            logger.warning("refused a read: %s", error)
            return _refuse(connection, ReplyStatus.NOT_REGISTERED)
        send(connection, memoryview(bytes([ReplyStatus.OK])), STALL_SECONDS)
        for view in views:
            send(connection, view, STALL_SECONDS)
        return True


def _refuse(connection: socket.socket, status: ReplyStatus) -> bool:
    send(connection, memoryview(bytes([status])), STALL_SECONDS)
    return False


def listen(host: str) -> socket.socket:
    """Listens on a random port of the range that NetworkPolicies allow.

    Raises:
        StartupError: the address is not ours, or no port is free.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    failure: OSError | None = None
    ports = range(KV_TRANSFER_MIN, KV_TRANSFER_MAX + 1)
    for port in random.SystemRandom().sample(ports, PORTS_TRIED):
        try:
            return socket.create_server((host, port), family=family)
        except OSError as error:
            failure = error
    raise StartupError(
        f"KV transfer: cannot listen on {host}, ports {KV_TRANSFER_MIN} to {KV_TRANSFER_MAX} "
        f"({PORTS_TRIED} tried): {failure}"
    )
