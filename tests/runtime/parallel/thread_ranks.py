"""Ranks as threads of one process. They exchange tensors in place of torch.distributed, and every
exchange is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import pytest
import torch
import torch.distributed as dist
from sluice_runtime.parallel import group as groups
from sluice_runtime.parallel.group import Group, TorchGroup
from torch import Tensor

from tests.patience import PATIENCE_SECONDS
from tests.runtime.recorded_graph import kernel

CPU = torch.device("cpu")
T = TypeVar("T")


class Collective(NamedTuple):
    """One exchange, as a rank takes part in it."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class ThreadRanks:
    """`size` ranks; each is in the thread that `run` gives it. Replaces the functions that
    `TorchGroup` calls."""

    ReduceOp = dist.ReduceOp

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.size = size
        self.calls: list[list[Collective]] = [[] for _ in range(size)]
        """Exchanges of each rank, in their order."""
        self._given: list[Tensor] = [torch.empty(0)] * size
        self._barrier = threading.Barrier(size, timeout=PATIENCE_SECONDS)
        self._thread = threading.local()
        monkeypatch.setattr(groups, "dist", self)

    def run(self, rank_of: Callable[[Group], T]) -> list[T]:
        """Runs the function as every rank; the results, in the order of ranks."""

        def rank(number: int) -> T:
            self._thread.rank = number
            try:
                return rank_of(TorchGroup(number, self.size, CPU))
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            ranks = [pool.submit(rank, number) for number in range(self.size)]
        errors = [error for each in ranks if (error := each.exception())]
        for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        return [each.result() for each in ranks]

    def all_reduce(self, x: Tensor, op: object = dist.ReduceOp.SUM) -> None:
        least = op == dist.ReduceOp.MIN

        def reduce(x: Tensor) -> None:
            parts = torch.stack(self._exchanged("all_reduce", x))
            x.copy_(parts.amin(0) if least else parts.sum(0))

        kernel(reduce, x)

    def all_gather_into_tensor(self, out: Tensor, part: Tensor) -> None:
        def gather(out: Tensor, part: Tensor) -> None:
            out.copy_(torch.cat(self._exchanged("all_gather", part)))

        kernel(gather, out, part)

    def broadcast(self, x: Tensor, src: int) -> None:
        kernel(lambda x: x.copy_(self._exchanged("broadcast", x)[src]), x)

    def _exchanged(self, name: str, x: Tensor) -> list[Tensor]:
        """The tensors of all ranks."""
        rank = self._thread.rank
        self.calls[rank].append(Collective(name, tuple(x.shape), x.dtype))
        self._given[rank] = x.clone()
        self._barrier.wait()
        given = [*self._given]
        self._barrier.wait()
        return given
