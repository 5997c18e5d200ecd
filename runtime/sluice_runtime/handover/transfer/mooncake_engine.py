"""Mooncake's native engine: its settings, its start, and the few methods that are used.

Undocumented facts are from its sources and from measurements of version 0.3.13: see
docs/decisions/0022-mooncake-batches.md.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Protocol, cast

from sluice_contract.cluster.ports import KV_TRANSFER_MAX, KV_TRANSFER_MIN

from sluice_runtime.errors import StartupError

PROGRESS_SECONDS: Final = 3
"""Silence after which a connection is dropped; then no bytes can land over it."""
LANES: Final = 8
"""Number of connections to a peer; each has its own queue of pieces."""

FIXED: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Mooncake's two listeners take random ports in this range, which NetworkPolicies allow.
        "MC_MIN_RPC_PORT": str(KV_TRANSFER_MIN),
        "MC_MAX_RPC_PORT": str(KV_TRANSFER_MAX),
        # `may_still_land` relies on this.
        "MC_TCP_PROGRESS_TIMEOUT_SEC": str(PROGRESS_SECONDS),
        "MC_TCP_STATUS_TIMEOUT_SEC": str(PROGRESS_SECONDS),
        "MC_TCP_LANES_PER_PEER": str(LANES),
    }
)
DEFAULTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Without it, every transfer opens a socket.
        "MC_TCP_ENABLE_CONNECTION_POOL": "1",
        "MC_HANDSHAKE_CONNECT_TIMEOUT": "5",
        # Logs only errors, which say why a read failed. The error "Local segment descriptor not
        # found" at the start means nothing.
        "MC_LOG_LEVEL": "ERROR",
    }
)
"""Environment variables that the pod's environment may override."""

logger = logging.getLogger("sluice.handover.mooncake")


class MooncakeEngine(Protocol):
    """The part of `mooncake.engine.TransferEngine` that is used; all release the GIL."""

    def initialize(self, host: str, metadata: str, protocol: str, device: str, /) -> int: ...
    def get_rpc_port(self) -> int: ...
    def get_local_topology(self) -> str: ...
    def register_memory(self, address: int, length_bytes: int, /) -> int: ...
    def unregister_memory(self, address: int, /) -> int: ...

    def send_probe(self, peer: str, /) -> int:
        """Probes a peer: 0 if it answers. Takes a minute if the peer is frozen."""
        ...

    def batch_transfer_async_read(
        self, peer: str, local: list[int], remote: list[int], lengths: list[int], /
    ) -> int:
        """Submits a batch; returns its number, 0 if it was not accepted."""
        ...

    def transfer_check_status(self, batch: int, /) -> int:
        """Status of the batch's first piece: 1 done, -1 failed, 0 or -2 not ended. After 1 or -1
        the batch is freed, so do not ask again."""
        ...


def start_engine(host: str, protocol: str, device: str | None) -> MooncakeEngine:
    """
    Raises:
        ImportError: the package or one of its native libraries is missing.
        StartupError: the engine does not initialise.
    """
    os.environ.update(FIXED)
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    from mooncake.engine import TransferEngine

    engine = cast(MooncakeEngine, TransferEngine())
    if (code := engine.initialize(host, "P2PHANDSHAKE", protocol, device or "")) != 0:
        raise StartupError(
            f"KV transfer: Mooncake does not initialise (code {code}) on {host} with protocol "
            f"{protocol}, device {device or 'of its choice'}; its own lines above say why"
        )
    _log_protocol(engine, protocol)
    return engine


def _log_protocol(engine: MooncakeEngine, protocol: str) -> None:
    """Logs the protocol in use: without an RDMA adapter Mooncake silently uses TCP."""
    used = protocol
    if protocol == "rdma" and not _adapters(engine.get_local_topology()):
        used = "tcp"
        logger.warning("kvTransfer.protocol is rdma, but Mooncake found no RDMA adapter")
    logger.info("Mooncake uses protocol %s, RPC port %d", used, engine.get_rpc_port())


def _adapters(topology: str) -> bool:
    """Whether there are RDMA adapters. `topology`: JSON, with two lists of adapters for each kind
    of memory."""
    return any(any(lists) for lists in json.loads(topology or "{}").values())
