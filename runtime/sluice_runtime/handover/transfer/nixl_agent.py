"""NIXL's native agent: its settings, its start, and the few calls that are used.

Uses NIXL's compiled module, because its Python API starts a thread that keeps a core busy.
Undocumented facts were measured with version 1.5.1: see docs/decisions/0059-nixl-for-rdma-alone.md.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sluice_runtime.errors import StartupError
from sluice_runtime.handover.transfer.backend import (
    MemoryPiece,
    NotRegisteredError,
    PeerUnreachableError,
    TransferError,
)

PROGRESS_MICROSECONDS: Final = 1000
"""Longest sleep of NIXL's thread, which events wake. With 0 the thread never sleeps and keeps a
core busy."""


class NixlAgent:
    """NIXL's agent, which knows a peer by the name in its metadata. Every method may be called from
    any thread.

    Raises:
        ImportError: the package or one of its native libraries is missing.
        StartupError: UCX supports none of the transports.
    """

    def __init__(self, name: str, transports: str, devices: str | None) -> None:
        os.environ["UCX_TLS"] = transports
        if devices is not None:
            os.environ["UCX_NET_DEVICES"] = devices
        os.environ.setdefault("NIXL_LOG_LEVEL", "ERROR")
        nixl: Any = importlib.import_module("nixl_cu13._bindings")
        self._nixl = nixl
        self._errors = tuple(
            each
            for each in vars(nixl).values()
            if isinstance(each, type) and issubclass(each, Exception)
        )
        config = nixl.nixlAgentConfig()
        config.useProgThread = True
        config.pthrDelay = PROGRESS_MICROSECONDS
        config.useListenThread = False
        config.syncMode = nixl.NIXL_THREAD_SYNC_STRICT
        try:
            self._agent: Any = nixl.nixlAgent(name, config)
            self._ucx = [self._agent.createBackend("UCX", {})]
        except self._errors as error:
            where = f"devices {devices}" if devices else "any device"
            raise StartupError(
                f"KV transfer: NIXL does not start ({error}) with UCX_TLS={transports} on {where}; "
                "its own lines above say why"
            ) from error

    @property
    def metadata(self) -> bytes:
        """Metadata with which a peer reaches the memory registered so far."""
        return bytes(self._agent.getLocalMD())

    def register(self, address: int, length_bytes: int) -> None:
        ranges = self._nixl.nixlRegDList(self._nixl.DRAM_SEG, [(address, length_bytes, 0, "")])
        with self._translated():
            self._agent.registerMem(ranges, self._ucx)

    def connect(self, metadata: bytes) -> str:
        """Connects to a peer and returns its name, without waiting for it."""
        try:
            return bytes(self._agent.loadRemoteMD(metadata)).decode()
        except self._errors as error:
            raise PeerUnreachableError(f"cannot connect ({error})") from error

    def forget(self, peer: str) -> None:
        """Forgets a peer, so that it can be connected again. Reads under way continue."""
        with self._translated():
            self._agent.invalidateRemoteMD(peer)

    def start_read(self, peer: str, pieces: Sequence[MemoryPiece]) -> int:
        """Starts a read; returns a handle, which must be released.

        Raises:
            NotRegisteredError: the peer's metadata lacks some of the addresses.
        """
        nixl = self._nixl
        ours = [(piece.local_address, piece.length_bytes, 0) for piece in pieces]
        theirs = [(piece.remote_address, piece.length_bytes, 0) for piece in pieces]
        with self._translated():
            handle = self._agent.createXferReq(
                nixl.NIXL_READ,
                nixl.nixlXferDList(nixl.DRAM_SEG, ours),
                nixl.nixlXferDList(nixl.DRAM_SEG, theirs),
                peer,
                b"",
                self._ucx,
            )
        try:
            with self._translated():
                self._agent.postXferReq(handle, b"")
        except TransferError:
            self.release(handle)
            raise
        return int(handle)

    def is_done(self, handle: int) -> bool:
        try:
            with self._translated():
                return bool(self._agent.getXferStatus(handle) == self._nixl.NIXL_SUCCESS)
        except NotRegisteredError as error:
            raise TransferError("the peer was forgotten meanwhile", may_still_land=True) from error

    def release(self, handle: int) -> None:
        """Frees a handle; this does not end its read."""
        with self._translated():
            self._agent.releaseXferReq(handle)

    def close(self) -> None:
        """Ends NIXL's thread and closes every connection."""
        self._agent = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Converts NIXL's errors to ours. If the connection is gone, no bytes can arrive any
        more."""
        nixl = self._nixl
        try:
            yield
        except nixl.nixlNotFoundError as error:
            says = f"the peer has not registered all of these addresses, or is unknown ({error})"
            raise NotRegisteredError(says) from error
        except nixl.nixlRemoteDisconnectError as error:
            raise PeerUnreachableError(f"the connection is lost ({error})") from error
        except self._errors as error:
            raise TransferError(f"failed ({error})", may_still_land=True) from error
