"""Where each token of a step comes from and goes to: flat tokens, rows, pages.

Made once a step by the runner, read by every layer's attention. Extend rows come first, decode
rows after them, one token each.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class ExtendSpan:
    """One extend row: flat tokens [begin, end), which are the row's last `end - begin` tokens."""

    begin: int
    end: int
    context: int
    """Tokens of the row in the pool after this step."""
    page_ids: Tensor
    """[pages that hold `context` tokens]."""


@dataclass(frozen=True)
class TokenLayout:
    """n tokens, of which the last b belong to decode rows."""

    pages: Tensor
    """[n] page in which each token's keys and values go."""
    offsets: Tensor
    """[n] slot in that page."""
    extends: tuple[ExtendSpan, ...]
    decode_pages: Tensor
    """[b, p] page tables, padded with the pool's padding page."""
    decode_contexts: Tensor
    """[b] tokens of each row in the pool after this step."""
