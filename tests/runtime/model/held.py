"""What a loaded model holds in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")


def held_bytes(owner: object) -> int:
    """Of all tensors that `owner` reaches; views of the same memory count once."""
    sizes: dict[int, int] = {}
    for tensor in reached(owner, Tensor):
        if tensor.is_mkldnn:  # has no storage that torch shows
            sizes[id(tensor)] = tensor.nbytes
        else:
            storage = tensor.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
    return sum(sizes.values())


def reached(owner: object, kind: type[T]) -> Iterator[T]:
    """Everything of a kind that `owner` reaches."""
    known: dict[int, object] = {}
    waiting: list[Any] = [owner]
    while waiting:
        item = waiting.pop()
        if id(item) in known or isinstance(item, type | ModuleType):
            continue
        known[id(item)] = item
        if isinstance(item, kind):
            yield item
        if isinstance(item, Tensor):
            continue
        if isinstance(item, FunctionType):  # its globals are nobody's
            waiting += [*(item.__closure__ or ()), item.__defaults__, item.__kwdefaults__]
        else:
            waiting += gc.get_referents(item)
