"""Ranks of one engine, and what they exchange within a step: sums, parts, tokens.

Every rank makes the same calls in the same order. On a GPU the host waits only in `least`. Knows no
layer and no batch.
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
"""Longest time that ranks wait for each other, at the start and in every call. It is long because
they load weights in between."""
LOOPBACK: Final = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Variables that keep the ranks' sockets on loopback: all ranks are in one container, and nothing
outside may join them."""


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
        """Rank 0's `x`, on every rank; `x` itself is overwritten with it."""
        ...

    def least(self, number: int) -> int:
        """Smallest of all ranks' numbers. The host waits for it."""
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
        rows, width = part.shape
        parts = part.new_empty((self.size * rows, width))
        dist.all_gather_into_tensor(parts, part.contiguous())
        return parts.view(self.size, rows, width).transpose(0, 1).flatten(1)

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
    # With NCCL all ranks must leave a group together. After an error here the others wait inside a
    # kernel, so leaving would hang, and the error would not be reported. The process ends anyway.
    leaves = device.type == "cpu"
    try:
        yield TorchGroup(rank, size, device)
        leaves = True
    finally:
        if leaves:
            dist.destroy_process_group()
