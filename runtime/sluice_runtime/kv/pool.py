"""The page pool: keys and values of every layer, `[page, layer, 2, token, head, dim]`.

Page-major, so that one page is one contiguous piece of memory: one descriptor of a transfer. Knows
no requests: the scheduler keeps track of who holds a page.

Beyond `pages` there is one more page, all zeros and never written: padding of page tables points
to it. For a backend that reads whole pages, a row's last page is zeroed when it is allocated, so
that slots not written yet hold no NaN, which a masked product (0 x NaN) would pass on.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

CPU: Final = torch.device("cpu")


@dataclass(frozen=True)
class KvShape:
    """Shape of the keys and values of one token."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return self.layers * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize


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
        """Of the draft model: whoever holds a page holds the one with its number there, too."""
        self.pages = pages
        self.page_size = page_size
        # [page, layer, 2, token, head, dim]
        self.data = zeros(
            (pages + 1, shape.layers, 2, page_size, shape.kv_heads, shape.head_dim),
            shape.dtype,
            device or CPU,
        )
        # The same memory as [page x layer x 2, token x head x dim]: a gather copies whole rows.
        self._slabs = self.data.view((pages + 1) * shape.layers * 2, -1)

    @property
    def address(self) -> int:
        """Of page 0; page `n` begins `n * page_bytes` further."""
        return self.data.data_ptr()

    @property
    def page_bytes(self) -> int:
        return self.shape.bytes_per_token * self.page_size

    @property
    def padding_page(self) -> int:
        """Number of the page that is always zero."""
        return self.pages

    def clear(self, page_ids: Tensor, value: float = 0.0) -> None:
        """Fills whole pages, in all layers; also the draft model's."""
        self.data.index_fill_(0, page_ids, value)
        if self.draft is not None:
            self.draft.clear(page_ids, value)

    def poison(self, page_ids: Sequence[int]) -> None:
        """Fills freed pages with NaN (tests)."""
        self.clear(torch.tensor(page_ids, device=self.data.device), float("nan"))

    def write(
        self, layer: int, pages: Tensor, offsets: Tensor, keys: Tensor, values: Tensor
    ) -> None:
        """Stores one token a row. pages, offsets: [n]; keys, values: [n, head, dim]."""
        self.data[pages, layer, 0, offsets] = keys
        self.data[pages, layer, 1, offsets] = values

    def gather(self, layer: int, page_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Copies of keys and values of pages [..., p] as [..., p x token, head, dim]."""
        first = (page_ids.reshape(-1) * self.shape.layers + layer) * 2
        shape = (*page_ids.shape[:-1], -1, self.shape.kv_heads, self.shape.head_dim)
        keys = self._slabs.index_select(0, first).view(shape)
        return keys, self._slabs.index_select(0, first + 1).view(shape)


def zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device = CPU) -> Tensor:
    """A tensor that lives as long as the process. On a CPU its memory is mapped but not
    touched: a part of it costs nothing until it is used."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    size_bytes = math.prod(size) * dtype.itemsize
    # Private memory can have huge pages where shared memory seldom may.
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(size)
