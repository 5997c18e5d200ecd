"""Where each token of a step comes from and goes to: flat tokens, rows, pages.

Made once a step by the runner, read by every layer's attention. Rows that extend come first, rows
that decode after them, one token each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from sluice_runtime.layers.flashinfer_graphs import GraphWrapper

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class RowNumbers:
    """What the host knows of a step's r rows, for whoever plans: nothing is read back."""

    rows: Numbers
    """[r]"""
    begins: Numbers
    """[r + 1]"""
    contexts: Numbers
    """[r]"""

    def page_counts(self, page_size: int) -> Numbers:
        """[r] pages that hold each row's context."""
        return -(-self.contexts // page_size)


@dataclass(frozen=True)
class TokenLayout:
    """n flat tokens of r rows. The tensors are on the device."""

    pages: Tensor
    """[n] page in which each token's keys and values go."""
    offsets: Tensor
    """[n] slot in that page."""
    page_table: Tensor
    """[any, most pages of a row]: pages of every row there is, padded with the padding page."""
    rows: Tensor
    """[r] each row's line in the page table."""
    begins: Tensor
    """[r + 1] row i is the flat tokens [begins[i], begins[i + 1]): the last ones of its context."""
    contexts: Tensor
    """[r] tokens of each row in the pool after this step."""
    extends: int
    """How many of the rows extend."""
    numbers: RowNumbers
    """`rows`, `begins` and `contexts` on the host."""
    planned: GraphWrapper | None = None
    """What has planned for these rows already, since planning cannot be captured in a graph."""
