"""Where each token of a step comes from and goes to: flat tokens, rows, pages.

Made once a step by the runner, read by every layer's attention. Extend rows come first, decode
rows after them, one token each, gathered in spans so that little is padded.
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
class DecodeSpan:
    """Decode rows of similar length: flat tokens [begin, end), one a row."""

    begin: int
    end: int
    contexts: Tensor
    """[rows] tokens of each row in the pool after this step."""
    page_ids: Tensor
    """[rows, pages of the longest], padded with the pool's padding page."""


@dataclass(frozen=True)
class TokenLayout:
    """n tokens: those of the extend rows, then those of the decode rows, shortest row first."""

    pages: Tensor
    """[n] page in which each token's keys and values go."""
    offsets: Tensor
    """[n] slot in that page."""
    extends: tuple[ExtendSpan, ...]
    decodes: tuple[DecodeSpan, ...]
