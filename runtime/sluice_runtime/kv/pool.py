"""The page pool: keys and values of every layer, `[page, layer, 2, token, head, dim]`.

The layout is page-major, so that a page is one contiguous piece of memory and one descriptor of a
transfer. Knows no requests: the scheduler keeps track of who holds a page.

Pages may hold 8-bit numbers (e4m3), each to be multiplied by its scale: there is one for each layer
and key head, of keys and of values. Numbers too large for the type are stored as its largest.

After the `pages` pages there is one more, all zeros and never written, to which padding of page
tables points. For a backend that reads whole pages, a row's last page is zeroed when it is
allocated: a NaN in a slot not written yet would survive a masked product (0 x NaN).
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from sluice_contract.config.model_shape import kv_values
from torch import Tensor

CPU: Final = torch.device("cpu")
FP8: Final = torch.float8_e4m3fn
FP8_MAX: Final = torch.finfo(FP8).max


@dataclass(frozen=True, eq=False)
class KvScales:
    """Factors for 8-bit keys and values: [layers, key heads] each, float32, on the host."""

    keys: Tensor
    values: Tensor

    @property
    def are_one(self) -> bool:
        return bool((self.keys == 1).all() and (self.values == 1).all())


@dataclass(frozen=True)
class KvShape:
    """Shape of the keys and values of one token."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    """Type of computations with keys and values."""
    scales: KvScales | None = None
    """Scales of pages with 8 bits; None: pages hold `dtype`."""

    @property
    def stored(self) -> torch.dtype:
        """Type that pages hold."""
        return self.dtype if self.scales is None else FP8

    @property
    def bytes_per_token(self) -> int:
        return kv_values(self.layers, self.kv_heads, self.head_dim) * self.stored.itemsize


class PagePool:
    """`pages` pages of `page_size` tokens on one device."""

    def __init__(
        self,
        shape: KvShape,
        pages: int,
        page_size: int,
        device: torch.device | None = None,
        draft: KvShape | None = None,
    ) -> None:
        self.shape = shape
        self.draft = PagePool(draft, pages, page_size, device) if draft else None
        """Pool of the draft model, if there is one. A page's holder also holds the page with its
        number there."""
        self.pages = pages
        self.page_size = page_size
        # [page, layer, 2, token, head, dim]
        self.data = zeros(
            (pages + 1, shape.layers, 2, page_size, shape.kv_heads, shape.head_dim),
            shape.stored,
            device or CPU,
        )
        self._fp8 = _Fp8(shape, shape.scales, self.data.device) if shape.scales else None
        # Not every operation supports the 8-bit type, so its numbers are moved as bytes.
        self._numbers = self.data if self._fp8 is None else self.data.view(torch.uint8)
        # The same memory as [page x layer x 2, token x head x dim]: a gather copies whole rows.
        self._slabs = self._numbers.view((pages + 1) * shape.layers * 2, -1)

    @property
    def address(self) -> int:
        """Address of page 0; page `n` begins `n * page_bytes` further."""
        return self.data.data_ptr()

    @property
    def page_bytes(self) -> int:
        return self.shape.bytes_per_token * self.page_size

    @property
    def padding_page(self) -> int:
        """Number of the page that is always zero."""
        return self.pages

    def clear(self, page_ids: Tensor, value: float = 0.0) -> None:
        """Fills whole pages in all layers, including the draft model's."""
        fill = value if self._fp8 is None else _as_byte(value)
        self._numbers.index_fill_(0, page_ids, fill)
        if self.draft is not None:
            self.draft.clear(page_ids, value)

    def poison(self, page_ids: Sequence[int]) -> None:
        """Fills freed pages with NaN (tests)."""
        self.clear(torch.tensor(page_ids, device=self.data.device), float("nan"))

    def write(
        self, layer: int, pages: Tensor, offsets: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Stores one token a row. pages, offsets: [n]; keys, values: [n, head, dim]."""
        if self._fp8 is not None:
            keys, values = self._fp8.stored(layer, keys, values)
        self._numbers[pages, layer, 0, offsets] = keys
        self._numbers[pages, layer, 1, offsets] = values

    def gather(self, layer: int, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of keys and values of pages [..., p] as [..., p x token, head, dim]."""
        first = (page_ids.reshape(-1) * self.shape.layers + layer) * 2
        shape = (*page_ids.shape[:-1], -1, self.shape.kv_heads, self.shape.head_dim)
        keys = self._slabs.index_select(0, first).view(shape)
        values = self._slabs.index_select(0, first + 1).view(shape)
        return (keys, values) if self._fp8 is None else self._fp8.read(layer, keys, values)


class _Fp8:
    """Conversion of keys and values to the bytes that pages hold, and back."""

    def __init__(self, shape: KvShape, scales: KvScales, device: torch.device) -> None:
        self._dtype = shape.dtype
        self._are_one = scales.are_one
        # [2, layers, key heads, 1]
        self._scales = torch.stack((scales.keys, scales.values))[..., None].to(device)
        every = torch.arange(256, dtype=torch.uint8).view(FP8)
        self._table = every.to(shape.dtype) if device.type == "cpu" else None
        """Values of all bytes, on CPUs: a table is 4 times as fast as torch's cast, 2 ns a
        number."""

    def stored(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Bytes of keys and values, [n, head, dim] each."""
        key_scale, value_scale = self._scales[:, layer]
        return _bytes(keys, key_scale), _bytes(values, value_scale)

    def read(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values for the bytes of pages, [..., head, dim] each."""
        key_scale, value_scale = self._scales[:, layer]
        return self._numbers(keys, key_scale), self._numbers(values, value_scale)

    def _numbers(self, stored: Tensor, scale: Tensor) -> Tensor:
        if self._table is None:
            numbers = stored.view(FP8).to(self._dtype)
        else:
            numbers = self._table.index_select(0, stored.flatten().int()).view(stored.shape)
        return numbers if self._are_one else (numbers.float() * scale).to(self._dtype)


def _bytes(numbers: Tensor, scale: Tensor) -> Tensor:
    scaled = (numbers.float() / scale).clamp_(-FP8_MAX, FP8_MAX)
    return scaled.to(FP8).view(torch.uint8)


def _as_byte(value: float) -> int:
    return int(torch.tensor(value).to(FP8).view(torch.uint8))


def zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
    """A tensor of zeros that lives until the process ends. On a CPU its memory is mapped but not
    touched, so unused parts cost nothing."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    size_bytes = math.prod(size) * dtype.itemsize
    # Private memory can have huge pages; shared memory usually cannot.
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(size)
