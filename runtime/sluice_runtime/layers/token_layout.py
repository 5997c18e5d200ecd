"""Where each token of a step comes from and goes to: flat tokens, rows, pages.

Made once a step by the runner, read by every layer's attention. Rows that extend come first, rows
that decode after them, one token each.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class TokenLayout:
    """n flat tokens of r rows."""

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
