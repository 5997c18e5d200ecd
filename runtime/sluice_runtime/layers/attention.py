"""What a step's attention is given and what it computes: the interface between model and backends.

`TokenLayout` says where each token of a step comes from and goes to: flat tokens, rows, pages. The
runner makes it once a step, every layer's attention reads it. Rows that extend come first, rows
that decode after them, one token each.

A backend norms and rotates queries and keys, stores keys and values in the page pool and lets every
token attend to all tokens before it in its row, whether the row extends or decodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice_runtime.layers.dense import HeadNorm

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


class GraphAttention(Protocol):
    """Attention of steps of `batch` rows of one token, planned in buffers that never move.

    Only such attention may be captured in a graph: another one's plan moves its buffers, and the
    graph would read the old ones without any error.
    """

    batch: int

    def holds(self, layout: TokenLayout) -> bool:
        """Whether a step's rows and pages fit."""
        ...

    def plan(self, layout: TokenLayout | None) -> None:
        """For a step that decodes, which `holds` let through; None: padding only."""
        ...

    def run(
        self, queries: Tensor, cache: tuple[Tensor, Tensor], /, *, out: Tensor, **scales: Any
    ) -> Tensor:
        """queries [n, heads, dim] over a layer's keys and values → [n, heads, dim]."""
        ...


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
    planned: GraphAttention | None = None
    """What has planned for these rows already, since planning cannot be captured in a graph."""

    def of_single_tokens(self) -> TokenLayout:
        """The same tokens, each as a row that decodes. What they attend to stays the same, since a
        layer stores the keys and values of all tokens before it attends; but each reads the
        whole context before it."""
        numbers = self.numbers
        counts, tokens = np.diff(numbers.begins), int(numbers.begins[-1])
        places = np.arange(tokens + 1)
        contexts = places[:-1] + 1 + (numbers.contexts - numbers.begins[1:]).repeat(counts)
        apart = RowNumbers(numbers.rows.repeat(counts), places, contexts)
        begins = torch.arange(tokens + 1, device=self.begins.device)
        row_of_token = torch.repeat_interleave(self.begins.diff(), output_size=tokens)
        return replace(
            self,
            rows=self.rows[row_of_token],
            begins=begins,
            contexts=begins[1:] + (self.contexts - self.begins[1:])[row_of_token],
            extends=0,
            numbers=apart,
        )

    def after_row(self, rows: int) -> tuple[TokenLayout, TokenLayout]:
        """The first `rows` rows, which extend, and the others, each as a step of its own."""
        numbers = self.numbers
        tokens = int(numbers.begins[rows])
        first = RowNumbers(numbers.rows[:rows], numbers.begins[: rows + 1], numbers.contexts[:rows])
        others = RowNumbers(
            numbers.rows[rows:], numbers.begins[rows:] - tokens, numbers.contexts[rows:]
        )
        return (
            replace(
                self,
                pages=self.pages[:tokens],
                offsets=self.offsets[:tokens],
                rows=self.rows[:rows],
                begins=self.begins[: rows + 1],
                contexts=self.contexts[:rows],
                extends=rows,
                numbers=first,
            ),
            replace(
                self,
                pages=self.pages[tokens:],
                offsets=self.offsets[tokens:],
                rows=self.rows[rows:],
                begins=self.begins[rows:] - tokens,
                contexts=self.contexts[rows:],
                extends=self.extends - rows,
                numbers=others,
            ),
        )


@dataclass(frozen=True)
class AttentionRule:
    """How layers attend that do not take the softmax over all tokens before."""

    window_tokens: int | None = None
    """How many tokens each attends to, itself included; None: all before it."""
    sinks: Mapping[int, Tensor] = field(default_factory=dict)
    """By layer, [heads]: one more score of each head, whose share no token has."""


class Attention(Protocol):
    """Attention of one step, over all layers."""

    def attend(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """qkv [n, heads + key heads + value heads, dim] → [n, heads, dim].

        Made for one step: the pool, where its tokens go, and the angles of their positions.
        """
        ...
