"""Assembles the parts of a prefill or decode engine besides the loop: key, pool, connections, role.

Transfer backends are imported by these roles only.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from sluice_contract.base import ConfigError
from sluice_contract.cluster.labels import Role as Role
from sluice_contract.config.kv_transfer import KvTransfer
from sluice_contract.config.sizing import PlannedConfig
from sluice_contract.wire.handover import Keys
from sluice_contract.wire.spans import Record

from sluice_runtime.engine.role import EngineRole, MixedRole
from sluice_runtime.errors import InvalidConfigError, StartupError
from sluice_runtime.fingerprint import kv_fingerprint
from sluice_runtime.handover.decode_client import DecodeClient
from sluice_runtime.handover.decode_role import DecodePorts, DecodeRole
from sluice_runtime.handover.hello import DecodeIdentity, PrefillIdentity
from sluice_runtime.handover.prefill_link import ClientSettings
from sluice_runtime.handover.prefill_role import PrefillPorts, PrefillRole
from sluice_runtime.handover.prefill_server import BootstrapSettings, PrefillServer
from sluice_runtime.handover.rooms import HandoverLimits
from sluice_runtime.handover.transfer.backend import TransferError
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.process.spans import recorder
from sluice_runtime.wire.messages import EngineReady

if TYPE_CHECKING:
    from sluice_runtime.engine.build import Engine
    from sluice_runtime.engine.pool_transport import PoolTransport
    from sluice_runtime.handover.transfer.backend import TransferBackend
    from sluice_runtime.parallel.processes import Socket

    Connect = Callable[[PagePool, TransferBackend], PoolTransport]


@dataclass(frozen=True)
class Started:
    """Role of the loop, and start message for the API process."""

    role: EngineRole
    ready: EngineReady


@contextmanager
def started_role(
    config: PlannedConfig,
    engine: Engine,
    keys: Keys,
    ready: EngineReady,
    wake: Callable[[], None],
    copiers: Sequence[Socket] = (),
    connect: Connect | None = None,
) -> Iterator[Started]:
    """Starts the role of `config`. Its threads run until the context ends; then another role may
    start. `keys`: the service's keys; `wake`: ends the loop's wait; `copiers`: see `transport_of`;
    `connect`: replaces the default way to connect.

    Raises:
        StartupError: one line that names key, value and what is allowed.
    """
    if config.role is Role.MIXED:
        yield Started(MixedRole(engine.scheduler), ready)
        return
    kv = config.kv_transfer
    compose = _prefill if config.role is Role.PREFILL else _decode
    with ExitStack() as stack:
        record = stack.enter_context(recorder(config, "engine"))
        backend = stack.enter_context(_backend(kv))
        connect = connect or _connect(config, engine, copiers)
        try:
            transport = connect(engine.pool, backend)
            parts = _Parts(config, kv, engine, keys, ready, backend, transport, wake, record)
            started = compose(parts, stack)
        except TransferError as error:
            raise StartupError(f"kvTransfer.backend: {kv.backend_or_default}: {error}") from error
        yield started


@dataclass(frozen=True)
class _Parts:
    config: PlannedConfig
    kv: KvTransfer
    engine: Engine
    keys: Keys
    ready: EngineReady
    backend: TransferBackend
    transport: PoolTransport
    wake: Callable[[], None]
    record: Record | None

    @property
    def identity(self) -> dict[str, object]:
        """Fields that both roles state about this engine in their hellos."""
        config = self.config
        return {
            "keys": self.keys,
            "epoch": self.ready.epoch,
            "fingerprint": kv_fingerprint(
                config.model.uri,
                config.model.revision,
                config.tensor_parallel_size,
                self.ready,
            ),
            "backend": self.backend.name,
        }


@contextmanager
def _backend(kv: KvTransfer) -> Iterator[TransferBackend]:
    from sluice_runtime.handover.transfer.registry import TransferSettings, create_backend

    settings = TransferSettings(_host(), kv.protocol, kv.device)
    backend = create_backend(kv.backend_or_default, settings)
    with closing(backend):
        yield backend


def _connect(config: PlannedConfig, engine: Engine, copiers: Sequence[Socket]) -> Connect:
    from sluice_runtime.engine.pool_transport import DECODE_BLOCKS, PREFILL_BLOCKS, transport_of

    counts = PREFILL_BLOCKS if config.role is Role.PREFILL else DECODE_BLOCKS
    copies = engine.model.spec.key_copies(engine.model.group.size)
    return partial(transport_of, counts=counts, copiers=copiers, copies=copies)


def _prefill(parts: _Parts, stack: ExitStack) -> Started:
    engine = parts.engine
    us = PrefillIdentity(**parts.identity, memory=parts.transport.memory)  # type: ignore[arg-type]
    port = parts.kv.bootstrap_port
    try:
        server = PrefillServer(us, parts.wake, BootstrapSettings(_host(), port), time.time)
    except OSError as error:
        allowed = f"a port that is free on {_host()} ({error.strerror})"
        wrong = ConfigError("kvTransfer.bootstrapPort", port, allowed)
        raise InvalidConfigError(str(wrong)) from None
    stack.enter_context(closing(server))
    publisher = parts.transport.publisher(engine.settings.page_size, parts.wake)
    stack.callback(publisher.close)
    role = PrefillRole(
        engine.scheduler,
        engine.grammars,
        engine.settings,
        PrefillPorts(server, publisher),
        record=parts.record,
    )
    ready = msgspec.structs.replace(parts.ready, bootstrap_port=server.port)
    return Started(role, ready)


def _decode(parts: _Parts, stack: ExitStack) -> Started:
    from sluice_runtime.handover.page_reads import PageReads
    from sluice_runtime.handover.transfer.reader import PageReader

    engine, local = parts.engine, parts.transport.local
    limits = HandoverLimits()
    wire = f"{parts.backend.name} over {parts.kv.protocol}"
    reader = PageReader(parts.transport.landing(), parts.wake, wire=wire)
    stack.enter_context(closing(reader))
    pages = PageReads(reader, local, limits.transfer_seconds, parts.wake)
    name = os.environ.get("POD_NAME") or socket.gethostname()
    us = DecodeIdentity(**parts.identity, name=name, page_bytes=local.page_bytes)  # type: ignore[arg-type]
    client = DecodeClient(
        us, parts.wake, ClientSettings(), time.time, partial(secrets.token_hex, 16)
    )
    stack.callback(client.shut_down)
    ports = DecodePorts(client, pages, partial(secrets.randbits, 63))
    page_size = engine.settings.page_size
    role = DecodeRole(
        engine.scheduler, engine.grammars, page_size, ports, limits, record=parts.record
    )
    return Started(role, parts.ready)


def _host() -> str:
    return os.environ.get("POD_IP") or "127.0.0.1"
