"""Buffers in host memory between files and a device, and the copies out of them.

A buffer is alternately filled and copied from; it is filled only after the last copy has finished
reading it. Knows neither file formats nor what a tensor is for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Wait = Callable[[], object]
"""Function that waits until a copy has read its source."""


class Copies(Protocol):
    """Copies from host memory to one device, in the order of their starts, in parallel to the
    device's other work. Several threads may use it."""

    @property
    def device(self) -> torch.device: ...

    def allocate(self, size: int) -> Tensor:
        """`size` bytes of host memory, of the kind from which the device copies fastest."""
        ...

    def follow(self) -> None:
        """Makes later copies wait for all device work that the caller has queued so far."""
        ...

    def begin(self, rows: Tensor, columns: slice, target: Tensor) -> Wait:
        """Starts copying columns of `rows`, converted to the type of `target`; returns a function
        that waits until `rows` has been read."""
        ...

    def finish(self) -> None:
        """Waits for all copies."""
        ...


class CudaCopies:
    """`Copies` by a separate CUDA stream, from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def allocate(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self.device))

    def begin(self, rows: Tensor, columns: slice, target: Tensor) -> Wait:
        """Starts a copy. Whole rows cross the bus, because a copy of only the columns would make
        the host wait."""
        with torch.cuda.stream(self._stream):
            target.copy_(rows.to(self.device, non_blocking=True)[:, columns])
            copied: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record()
        return copied.synchronize  # type: ignore[no-any-return]

    def finish(self) -> None:
        self._stream.synchronize()


@dataclass(frozen=True)
class Rows:
    """Whole rows of a matrix in a file, and the columns of them that are needed."""

    offset: int
    length: int
    """Length in bytes, like the offset."""
    dtype: torch.dtype
    width: int
    """Number of values of a row in the file."""
    columns: slice

    @property
    def wanted(self) -> int:
        """Number of values of a row that are needed."""
        return int(self.columns.stop - self.columns.start)


class StagingBuffer:
    """`size` bytes of host memory; used by one thread at a time."""

    def __init__(self, size: int, copies: Copies) -> None:
        self._bytes = copies.allocate(size)
        self._copies = copies
        self._wait_for_copy: Wait = lambda: None

    def fill(self, descriptor: int, rows: Rows) -> None:
        """Reads rows of a file once the last copy has left the buffer.

        Raises:
            OSError: the file cannot be read, or is too short.
        """
        self._wait_for_copy()
        view, offset = memoryview(self._bytes.numpy().data)[: rows.length], rows.offset
        while len(view):
            count = os.preadv(descriptor, [view], offset)
            if count == 0:
                raise OSError("the file has become shorter")
            view, offset = view[count:], offset + count

    def copy(self, rows: Rows, target: Tensor) -> None:
        """Starts copying the buffer's rows to `target`."""
        values = self._bytes[: rows.length].view(rows.dtype).view(-1, rows.width)
        self._wait_for_copy = self._copies.begin(values, rows.columns, target)
