"""Both ends of a control connection in one process, and a raw socket in place of either."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import msgspec
from sluice_contract.config.kv_transfer import KvFingerprint
from sluice_runtime.handover.connection import ConnectionLimits
from sluice_runtime.handover.decode_client import DecodeClient
from sluice_runtime.handover.framing import FrameReader, frame
from sluice_runtime.handover.hello import DecodeIdentity, PrefillIdentity
from sluice_runtime.handover.messages import Bootstrap, HandoverMessage, ToDecode, ToPrefill
from sluice_runtime.handover.ports import DecodeEvent, PeerMemory, PrefillEvent
from sluice_runtime.handover.prefill_link import ClientSettings
from sluice_runtime.handover.prefill_server import BootstrapSettings, PrefillServer
from sluice_runtime.wire.messages import PrefillEngine

from tests.runtime.harness import generate

NOW = 1_000_000.0
LIMIT_SECONDS = 60.0
"""Of every wait: a test that reaches it fails."""
PRINT = KvFingerprint(
    model="hf://m", page_size_tokens=16, kv_dtype="bfloat16", tensor_parallel_size=1
)
MEMORY = PeerMemory("10.0.0.2:15000", 1 << 40, 4096, 64)
PREFILL = PrefillIdentity(lambda: (b"k" * 32,), "prefill-1", PRINT, "tcp", MEMORY)
DECODE = DecodeIdentity(lambda: (b"k" * 32,), "decode-1", "decode-pod", PRINT, "tcp", 4096)
QUICK = ConnectionLimits(greeting_seconds=0.2, ping_seconds=0.05, silence_seconds=0.2)

E = TypeVar("E")


class Mailbox(Generic[E]):
    """Takes events of a port when its wake-up was called."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self._kept: list[E] = []

    def take(self, events: Callable[[], list[E]], count: int = 1) -> list[E]:
        """The next `count` events; more stay for the next call."""
        while True:
            self._kept += events()
            if len(self._kept) >= count:
                taken, self._kept = self._kept[:count], self._kept[count:]
                return taken
            assert self.woken.wait(LIMIT_SECONDS), f"only {self._kept} came"
            self.woken.clear()


@dataclass
class Server:
    port: PrefillServer
    mail: Mailbox[PrefillEvent] = field(default_factory=Mailbox)

    def take(self, count: int = 1) -> list[PrefillEvent]:
        return self.mail.take(self.port.events, count)

    @property
    def engine(self) -> PrefillEngine:
        return PrefillEngine("127.0.0.1", self.port.port, PREFILL.epoch, "prefill-pod")


@dataclass
class Client:
    port: DecodeClient
    mail: Mailbox[DecodeEvent] = field(default_factory=Mailbox)

    def take(self, count: int = 1) -> list[DecodeEvent]:
        return self.mail.take(self.port.events, count)


@contextmanager
def serving(
    us: PrefillIdentity = PREFILL,
    limits: ConnectionLimits | None = None,
    now: float = NOW,
    **settings: Any,
) -> Iterator[Server]:
    mail: Mailbox[PrefillEvent] = Mailbox()
    listening = BootstrapSettings("127.0.0.1", 0, limits=limits or ConnectionLimits(), **settings)
    port = PrefillServer(us, mail.woken.set, listening, lambda: now)
    try:
        yield Server(port, mail)
    finally:
        port.close()


@contextmanager
def connecting(
    us: DecodeIdentity = DECODE,
    limits: ConnectionLimits | None = None,
    nonce: Callable[[], str] | None = None,
    **settings: Any,
) -> Iterator[Client]:
    mail: Mailbox[DecodeEvent] = Mailbox()
    numbers = itertools.count()
    port = DecodeClient(
        us,
        mail.woken.set,
        ClientSettings(limits=limits or ConnectionLimits(), **settings),
        lambda: NOW,
        nonce or (lambda: f"nonce-{next(numbers)}"),
    )
    try:
        yield Client(port, mail)
    finally:
        port.shut_down()


def bootstrap(room: int, prompt: list[int] | None = None) -> Bootstrap:
    return Bootstrap(room, generate(f"r{room}", prompt or [1, 2, 3], 4), 0, "hash", 30.0)


class RawPeer:
    """A socket that speaks the protocol only as far as a test makes it."""

    def __init__(self, peer: socket.socket) -> None:
        peer.settimeout(LIMIT_SECONDS)
        self.socket = peer
        self._frames = FrameReader(1 << 30)
        self._payloads: list[bytes] = []

    def send(self, message: HandoverMessage) -> None:
        self.socket.sendall(frame(message))

    def read(self) -> ToPrefill | ToDecode:
        """The next message; EOFError at the end."""
        decoder: msgspec.msgpack.Decoder[ToPrefill | ToDecode] = msgspec.msgpack.Decoder(
            ToPrefill | ToDecode
        )
        while not self._payloads:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._payloads += self._frames.feed(data)
        return decoder.decode(self._payloads.pop(0))

    def at_end(self) -> bool:
        """Whether the peer ended the connection; waits for what it still says."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        return True


@contextmanager
def raw_client(server: Server) -> Iterator[RawPeer]:
    with socket.create_connection(("127.0.0.1", server.port.port), LIMIT_SECONDS) as peer:
        yield RawPeer(peer)


@contextmanager
def raw_listener() -> Iterator[tuple[socket.socket, PrefillEngine]]:
    """In place of a prefill engine: nothing is accepted unless the test does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LIMIT_SECONDS)
        port = listener.getsockname()[1]
        yield listener, PrefillEngine("127.0.0.1", port, PREFILL.epoch, "prefill-pod")


def other_print(**changes: Any) -> DecodeIdentity:
    return replace(DECODE, fingerprint=PRINT.model_copy(update=changes))
