"""Peers to read from: another process, or for backend Memory an object of this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Protocol

from sluice_runtime.handover.transfer.backend import TransferBackend
from sluice_runtime.handover.transfer.memory import MemoryBackend, MemoryNetwork
from sluice_runtime.handover.transfer.nixl import NixlBackend
from sluice_runtime.handover.transfer.registry import TransferSettings, create_backend

from tests.runtime.handover.transfer.memory_block import MemoryBlock, contents

ROOT = Path(__file__).parents[4]
SIZE = 4 << 20


def local_backend(name: str) -> TransferBackend:
    """On loopback; NIXL over TCP, which no configuration can select."""
    if name == "NIXL":
        return NixlBackend("tcp", "lo")
    return create_backend(name, TransferSettings(host="127.0.0.1"))


class Peer(Protocol):
    session: str
    address: int
    contents: bytes

    def kill(self) -> None: ...


class ProcessPeer:
    def __init__(self, name: str, seed: int) -> None:
        self.contents = contents(seed, SIZE)
        module = "tests.runtime.handover.transfer.serve_memory"
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, name, str(seed), str(SIZE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the peer ended with {self._process.wait()}"
        self.session, self.address = json.loads(line)

    @property
    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def freeze(self) -> None:
        """Returns when all of its threads stand still."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


class MemoryPeer:
    def __init__(self, network: MemoryNetwork, seed: int) -> None:
        self.contents = contents(seed, SIZE)
        self._memory = MemoryBlock(SIZE)
        self._memory.fill(self.contents)
        self._backend = MemoryBackend(network)
        self._backend.register(self._memory.address, SIZE)
        self.session, self.address = self._backend.session, self._memory.address

    def kill(self) -> None:
        self._backend.close()


class Setting:
    """Backends of one kind that can reach each other; `close` ends all that it made."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._network = MemoryNetwork()
        self._ends: list[Callable[[], None]] = []
        self._blocks: list[MemoryBlock] = []

    @cached_property
    def lasting_backend(self) -> TransferBackend:
        """To read with, for all tests that need no more than one."""
        return self.backend()

    @cached_property
    def lasting(self) -> Peer:
        """For all tests that leave it as it is."""
        return self.peer(seed=99)

    def backend(self) -> TransferBackend:
        if self.name == "Memory":
            made: TransferBackend = MemoryBackend(self._network)
        else:
            made = local_backend(self.name)
        self._ends.append(made.close)
        return made

    def block(self) -> MemoryBlock:
        """Kept as long as a backend may have it registered."""
        self._blocks.append(MemoryBlock(SIZE))
        return self._blocks[-1]

    def peer(self, seed: int = 1) -> Peer:
        if self.name == "Memory":
            return MemoryPeer(self._network, seed)
        return self.process(seed)

    def process(self, seed: int = 1) -> ProcessPeer:
        peer = ProcessPeer(self.name, seed)
        self._ends.append(peer.kill)
        return peer

    def close(self) -> None:
        for end in reversed(self._ends):
            end()
