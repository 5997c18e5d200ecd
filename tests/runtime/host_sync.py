"""Finds waits for the device, without a device.

Inside `fake_tensors` tensors on "cuda" are torch's fakes: they have a shape and no content, so
whatever needs a content on the host (`item`, `nonzero`, an index by a mask) raises. Inside
`no_host_sync`, which is for what runs once everything is set up, copies between host and device
raise as well, and so do operators that mix tensors of both, an index for instance, since torch
would copy and wait: numbers travel through `engine.device.Device` alone, of which `FakeGpu` is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch
from sluice_runtime.engine.device import CPU, Column, Fetched, HostNumbers, Inbox
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

GPU: Final = torch.device("cuda", 0)


class HostSyncError(Exception):
    """A GPU would have been waited for."""


def fake_tensors() -> FakeTensorMode:
    """Tensors that are made inside belong to this context and may not leave it."""
    return FakeTensorMode()


@contextmanager
def no_host_sync() -> Iterator[None]:
    """Raises HostSyncError, or what torch raises where a content is missing."""
    with _Crossings():
        yield


class FakeGpu:
    """Tensors without a content."""

    place: Final = GPU
    asynchronous: Final = True

    def upload(self, columns: Sequence[Column]) -> Sequence[Tensor]:
        assert len({column.dtype for column in columns}) == 1, "one copy has one dtype"
        return [self.mirror(column) for column in columns]

    def mirror(self, table: Column) -> Tensor:
        return torch.empty(table.shape, dtype=_DTYPES[table.dtype.name], device=GPU)

    def inbox(self, size: int) -> Inbox:
        return FakeInbox(size)

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        assert all(tensor.device == GPU for tensor in tensors)

        def fetched() -> list[Tensor]:
            raise HostSyncError("results are read while a step is launched")

        return fetched


class FakeInbox:
    """See `engine.device.Inbox`."""

    def __init__(self, size: int) -> None:
        array = np.zeros(size, np.int32)
        self.tensor = torch.empty(size, dtype=torch.int32, device=GPU)
        self.buffers: tuple[HostNumbers, ...] = (HostNumbers(array, torch.from_numpy(array)),)

    def writable(self) -> int:
        return 0

    def send(self) -> None:
        return


class _Crossings(TorchDispatchMode):
    """Raises where an operator has tensors of the host and of the device."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        places = {
            tensor.device.type
            for tensor in tree_leaves((args, kwargs, result))
            # A number of the host goes to the device as an argument of the kernel.
            if isinstance(tensor, Tensor) and (tensor.dim() or tensor.device != CPU)
        }
        if len(places) > 1:
            raise HostSyncError(f"{func} has tensors of both {' and '.join(sorted(places))}")
        return result


_DTYPES: Final = {
    name: getattr(torch, name) for name in ("bool", "uint8", "int32", "int64", "float32", "float64")
}
