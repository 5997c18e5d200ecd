"""Moves a step's numbers to the device that computes it and its results back, and turns failed
allocations there into errors. Knows no batch and no model.

On a CPU numbers and results are in the host's own memory. On a GPU numbers go through pinned
buffers, in the order of the current stream, and nothing waits until the results are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sluice_contract.config.accelerators import Accelerator
from torch import Tensor

from sluice_runtime.errors import AcceleratorMissingError, OutOfMemoryError, StepOutOfMemoryError

CPU: Final = torch.device("cpu")
STAGING_BUFFERS: Final = 64
"""Number of staging buffers. Two steps are in flight at most. Each uploads a few times, once more
for each scored prompt, and up to four times for each block of rows that it samples."""
_SMALLEST_BYTES: Final = 1 << 16
SIGNS: Final = ("can't allocate memory", "not enough memory", "out of memory")

INBOX_BUFFERS: Final = 2
"""Buffers on the host of one inbox: a step is filled while the step before it may be in flight."""

Column = NDArray[Any]
"""Array [n] of one of numpy's types that torch has too."""
Whole = NDArray[np.int64]
Real = NDArray[np.float64]
Marks = NDArray[np.bool_]
Fetched = Callable[[], list[Tensor]]
"""Function that waits for the tensors to arrive in the host's memory."""


class Event(Protocol):
    """The part of `torch.cuda.Event` that is used here."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...


@dataclass(frozen=True)
class HostNumbers:
    """Numbers [n] of int32 in the host's memory, as an array and as a tensor."""

    array: NDArray[np.int32]
    tensor: Tensor


class Inbox(Protocol):
    """Numbers of each step, in one tensor that never moves, so that graphs can read them."""

    tensor: Tensor
    """[n] int32 on the device."""
    buffers: tuple[HostNumbers, ...]
    """Buffers on the host that are filled in turns."""

    def writable(self) -> int:
        """Number of the buffer to fill for the next step, the same one until `send`. Waits if its
        last copy has not been made."""
        ...

    def send(self) -> None:
        """Copies the whole buffer that `writable` named into `tensor`."""
        ...


class Device(Protocol):
    """Device that computes steps; copies and results keep the order of the steps."""

    @property
    def place(self) -> torch.device: ...

    @property
    def asynchronous(self) -> bool:
        """Whether the host continues while the device computes."""
        ...

    def upload(self, columns: Sequence[Column]) -> Sequence[Tensor]:
        """One tensor for each column; all columns have one dtype and travel in one copy. The caller
        may overwrite the columns at once, unless the device is the host: see `HostDevice`."""
        ...

    def mirror(self, table: Column) -> Tensor:
        """A tensor that begins with the content of `table` and lives as long as the process."""
        ...

    def inbox(self, size: int) -> Inbox:
        """An inbox of `size` numbers, all 0."""
        ...

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        """Sends tensors to the host; the caller must not change them afterwards."""
        ...


def upload_mixed(device: Device, columns: Sequence[Whole | Real]) -> list[Tensor]:
    """One tensor for each column; whole and real numbers travel in one copy."""
    words: list[NDArray[Any]] = [column.view(np.int64) for column in columns]
    received = zip(columns, device.upload(words), strict=True)
    return [
        tensor.view(torch.float64) if column.dtype == np.float64 else tensor
        for column, tensor in received
    ]


class HostDevice:
    """The CPU: tensors share the memory of the arrays that they are made of."""

    place: Final = CPU
    asynchronous: Final = False

    def upload(self, columns: Sequence[Column]) -> Sequence[Tensor]:
        return [torch.from_numpy(column) for column in columns]

    def mirror(self, table: Column) -> Tensor:
        """The table's own memory, so it follows all changes."""
        return torch.from_numpy(table)

    def inbox(self, size: int) -> Inbox:
        return _HostInbox(size)

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        kept = list(tensors)
        return lambda: kept


class _HostInbox:
    """One buffer, which is the tensor itself."""

    def __init__(self, size: int) -> None:
        self.tensor = torch.zeros(size, dtype=torch.int32)
        self.buffers: tuple[HostNumbers, ...] = (HostNumbers(self.tensor.numpy(), self.tensor),)

    def writable(self) -> int:
        return 0

    def send(self) -> None:
        """Does nothing: the numbers are there."""


class StreamDevice:
    """A device that processes a stream of copies and kernels while the host continues."""

    asynchronous: Final = True

    def __init__(
        self,
        place: torch.device,
        allocate: Callable[[int], Tensor],
        event: Callable[[], Event],
        buffers: int = STAGING_BUFFERS,
    ) -> None:
        """`allocate(n)` makes a buffer of n bytes that the device can copy from."""
        self.place = place
        self._allocate = allocate
        self._event = event
        self._ring = [_StagingBuffer(allocate, event()) for _ in range(buffers)]
        self._next = 0

    def upload(self, columns: Sequence[Column]) -> Sequence[Tensor]:
        """Uploads through a staging buffer; waits only if all of them are being read."""
        staging = self._ring[self._next]
        self._next = (self._next + 1) % len(self._ring)
        staged = staging.filled(columns)
        sent = staged.to(self.place, non_blocking=True, copy=True)
        staging.sent()
        return torch.split(sent, [len(column) for column in columns])

    def mirror(self, table: Column) -> Tensor:
        return torch.from_numpy(table).to(self.place, copy=True)

    def inbox(self, size: int) -> Inbox:
        return _StreamInbox(self.place, self._allocate, self._event, size)

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        """Starts the copies without waiting; torch then copies into pinned memory of its own."""
        event = self._event()
        sent = [tensor.to(CPU, non_blocking=True) for tensor in tensors]
        event.record()

        def fetched() -> list[Tensor]:
            event.synchronize()
            return sent

        return fetched


class _StagingBuffer:
    """Pinned memory that is filled again once the copy that reads it has finished."""

    def __init__(self, allocate: Callable[[int], Tensor], read: Event) -> None:
        self._allocate = allocate
        self._read = read
        self._buffer = torch.zeros(0, dtype=torch.uint8)
        self._bytes = self._buffer.numpy()
        self._typed: dict[np.dtype[Any], Tensor] = {}
        """The buffer as each type of number that was sent."""

    def filled(self, columns: Sequence[Column]) -> Tensor:
        """The columns one after the other: [total]."""
        kind, count = columns[0].dtype, sum(map(len, columns))
        if len(self._bytes):
            self._read.synchronize()
        if len(self._bytes) < count * kind.itemsize:
            rounded = 1 << max(count * kind.itemsize - 1, 0).bit_length()
            self._buffer = self._allocate(max(_SMALLEST_BYTES, rounded))
            self._bytes = self._buffer.numpy()
            self._typed.clear()
        np.concatenate(columns, out=self._bytes[: count * kind.itemsize].view(kind))
        if kind not in self._typed:
            self._typed[kind] = self._buffer.view(torch.from_numpy(columns[0]).dtype)
        return self._typed[kind][:count]

    def sent(self) -> None:
        """Records that the copy is in the stream."""
        self._read.record()


class _StreamInbox:
    """Pinned buffers that are copied in the order of the stream."""

    def __init__(
        self,
        place: torch.device,
        allocate: Callable[[int], Tensor],
        event: Callable[[], Event],
        size: int,
    ) -> None:
        self.tensor = torch.zeros(size, dtype=torch.int32, device=place)
        pinned = [allocate(4 * size).view(torch.int32).zero_() for _ in range(INBOX_BUFFERS)]
        self.buffers = tuple(HostNumbers(tensor.numpy(), tensor) for tensor in pinned)
        self._read = [event() for _ in pinned]
        self._turn = 0

    def writable(self) -> int:
        self._read[self._turn].synchronize()
        return self._turn

    def send(self) -> None:
        self.tensor.copy_(self.buffers[self._turn].tensor, non_blocking=True)
        self._read[self._turn].record()
        self._turn = (self._turn + 1) % len(self.buffers)


def place_of(accelerator: Accelerator | None, index: int = 0) -> torch.device:
    """Place where an engine with this accelerator computes; `index`: which GPU of the container."""
    on_cpu = accelerator is None or accelerator.is_cpu
    return CPU if on_cpu else torch.device("cuda", index)


def step_device(accelerator: Accelerator | None, index: int = 0) -> Device:
    """The device of an engine with this accelerator; `index`: which GPU of the container.

    Raises:
        AcceleratorMissingError: torch cannot use the accelerator.
    """
    if accelerator is None or accelerator.is_cpu:
        return HostDevice()
    if index >= (count := torch.cuda.device_count()):
        raise AcceleratorMissingError(
            f"accelerator: {accelerator} is asked for, and torch {torch.__version__} can use "
            f"{count} GPUs: the image must be one for GPUs, and as new as the driver allows"
        )
    torch.cuda.set_device(index)
    return StreamDevice(
        place_of(accelerator, index),
        lambda size: torch.empty(size, dtype=torch.uint8, pin_memory=True),
        torch.cuda.Event,
    )


@contextmanager
def allocation(
    phase: str,
    allocated: str,
    lower: str,
    failure: type[OutOfMemoryError | StepOutOfMemoryError] = OutOfMemoryError,
) -> Iterator[None]:
    """Turns a failed allocation inside into a `failure`; other errors pass.

    Args:
        phase: what allocates, e.g. `KV pool`.
        allocated: what is allocated, with numbers.
        lower: the settings to lower.
        failure: the error to raise.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not (isinstance(error, MemoryError | torch.OutOfMemoryError) or _is_allocation(error)):
            raise
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise failure(f"{phase} needs {allocated}; lower {lower} ({cause})") from error


def _is_allocation(error: Exception) -> bool:
    return any(sign in str(error).lower() for sign in SIGNS)
