"""Ranks of one engine, and what they exchange within a step: sums, parts, tokens.

Every rank makes the same calls in the same order; on a GPU the host waits for none of them, but for
`least`. Knows no layer and no batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

JOIN_TIMEOUT: Final = timedelta(minutes=10)
"""Timeout of the first meeting, and of the lag of any rank: all load weights meanwhile."""
LOOPBACK: Final = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Variables that keep sockets of ranks on loopback: they share a container, which no one else
should join from outside."""


class Group(Protocol):
    """The ranks 0 to `size` - 1; this process is `rank`."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum(self, x: Tensor) -> Tensor:
        """Sum of all ranks' `x`, which may be changed."""
        ...

    def join(self, part: Tensor) -> Tensor:
        """Parts of all ranks, in their order: [m, part] → [m, size x part]."""
        ...

    def from_first(self, x: Tensor) -> Tensor:
        """Value of `x` on rank 0; `x` becomes it."""
        ...

    def least(self, number: int) -> int:
        """The least of all ranks' numbers. The host waits."""
        ...


@dataclass(frozen=True)
class Solo:
    """Group of an engine of one rank, with no exchange."""

    rank: int = 0
    size: int = 1

    def sum(self, x: Tensor) -> Tensor:
        return x

    def join(self, part: Tensor) -> Tensor:
        return part

    def from_first(self, x: Tensor) -> Tensor:
        return x

    def least(self, number: int) -> int:
        return number


SOLO: Final = Solo()


class TorchGroup:
    """Group by torch.distributed: NCCL between GPUs, Gloo between CPUs."""

    def __init__(self, rank: int, size: int, device: torch.device) -> None:
        self.rank = rank
        self.size = size
        self._device = device

    def sum(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def join(self, part: Tensor) -> Tensor:
        parts = [torch.empty_like(part) for _ in range(self.size)]
        dist.all_gather(parts, part.contiguous())
        return torch.cat(parts, dim=-1)

    def from_first(self, x: Tensor) -> Tensor:
        dist.broadcast(x, src=0)
        return x

    def least(self, number: int) -> int:
        numbers = torch.tensor([number], device=self._device)
        dist.all_reduce(numbers, dist.ReduceOp.MIN)
        return int(numbers.item())


@contextmanager
def joined_group(rank: int, size: int, device: torch.device, meeting: Path) -> Iterator[Group]:
    """Joins the group of `size` processes that all name the file `meeting`, which must be new.
    torch knows one group per process. No CUDA graph with calls of the group may outlive it."""
    for name, value in LOOPBACK.items():
        os.environ.setdefault(name, value)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=size,
        timeout=JOIN_TIMEOUT,
        device_id=None if device.type == "cpu" else device,
    )
    # NCCL leaves a group together with all ranks. After an error here they do not leave, but wait
    # inside a kernel, so that this process would hang and not tell its error; it ends anyway.
    leaves = device.type == "cpu"
    try:
        yield TorchGroup(rank, size, device)
        leaves = True
    finally:
        if leaves:
            dist.destroy_process_group()
