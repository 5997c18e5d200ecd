"""A device in this process's own memory that computes at once and tells nothing until it is waited
for: as a GPU, whose results are there when its event is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from sluice_runtime.engine.device import CPU, Fetched, StreamDevice
from torch import Tensor

UNREAD = -(1 << 40)


class FakeEvent:
    """Done once somebody has waited for it."""

    def __init__(self) -> None:
        self.recorded = 0
        self.waited = 0

    def record(self) -> None:
        self.recorded += 1

    def synchronize(self) -> None:
        self.waited = self.recorded


class LateDevice(StreamDevice):
    """Its memory is not the host's: tensors are copies. Results arrive when they are waited for."""

    def __init__(self, buffers: int = 2) -> None:
        self.waited = 0
        super().__init__(CPU, _buffer, FakeEvent, buffers)

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        there = [tensor.clone() for tensor in tensors]
        here = [torch.full_like(tensor, UNREAD) for tensor in tensors]

        def fetched() -> list[Tensor]:
            self.waited += 1
            for ours, theirs in zip(here, there, strict=True):
                ours.copy_(theirs)
            return here

        return fetched


def _buffer(size: int) -> Tensor:
    return torch.empty(size, dtype=torch.uint8)
