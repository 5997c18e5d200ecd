"""Input and output of a step's attention: the interface between model and backends.

`TokenLayout` gives the row, page and slot of each of a step's flat tokens. The runner makes it once
in each step; every layer's attention reads it. Rows that extend come first, then rows that decode,
with one token each.

A backend norms and rotates queries and keys, and stores keys and values in the page pool. Every
token then attends to all tokens before it in its row, whether the row extends or decodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sluice_runtime.layers.dense import HeadNorm

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class RowNumbers:
    """A step's r rows as the host knows them, for planning without reading anything back."""

    rows: Numbers
    """[r]"""
    begins: Numbers
    """[r + 1]"""
    contexts: Numbers
    """[r]"""

    def page_counts(self, page_size: int) -> Numbers:
        """Pages that hold each row's context [r]."""
        return -(-self.contexts // page_size)

    def of_single_tokens(self) -> RowNumbers:
        """Numbers in which each token is a decode row of its own. Results are equal, because a
        layer stores all tokens' keys and values before it attends; but each token then reads its
        whole context."""
        counts, places = np.diff(self.begins), np.arange(int(self.begins[-1]) + 1)
        contexts = places[1:] + (self.contexts - self.begins[1:]).repeat(counts)
        return RowNumbers(self.rows.repeat(counts), places, contexts)


@dataclass(frozen=True)
class GraphRows:
    """Rows of one token each, on the device, where graphs find them in each replay: int32."""

    indptr: Tensor
    """[rows + 1] row i's pages are [indptr[i], indptr[i + 1]) of `indices`."""
    indices: Tensor
    """[any]"""
    last_page_len: Tensor
    """[rows] tokens in each row's last page."""


Run = Callable[..., Tensor]
"""Function: (queries [n, heads, dim], a layer's keys and values, its sinks and the scale of scores
if it has sinks, out=[n, heads, dim], scales of keys and values) → out."""


class LayerKind(NamedTuple):
    """Layers with the same attention."""

    window_tokens: int | None = None
    """See `AttentionRule`."""
    sinks: bool = False
    """Whether layers have attention sinks."""

    @property
    def plain(self) -> bool:
        """Whether tokens attend to all earlier ones, and to nothing else."""
        return self == LayerKind()


PLAIN: Final = (LayerKind(),)
"""Kinds of layers of most models."""


class GraphAttention(Protocol):
    """Attention of steps of `batch` rows of one token, planned in buffers that never move.

    Only attention of this type may be captured in a graph: other plans move their buffers, and the
    graph would silently read the old ones.
    """

    @property
    def batch(self) -> int: ...

    def plan(self, indptr: Tensor, last_page_len: Tensor) -> None:
        """Plans for the rows that its `GraphRows` will hold: [batch + 1], [batch], on the host."""
        ...

    def run_with(self, kind: LayerKind) -> Run:
        """Computes the layers of this kind."""
        ...


@dataclass(frozen=True)
class TokenLayout:
    """n flat tokens of r rows. The tensors are on the device."""

    pages: Tensor
    """[n] page in which each token's keys and values go."""
    offsets: Tensor
    """[n] slot in that page."""
    page_table: Tensor
    """[any, most pages of a row]: pages of all rows of the engine, padded with the padding page."""
    rows: Tensor
    """[r] index of each row in the page table."""
    begins: Tensor
    """[r + 1] row i is the flat tokens [begins[i], begins[i + 1]): the last ones of its context."""
    contexts: Tensor
    """[r] tokens of each row in the pool after this step."""
    extends: int
    """Number of rows that extend."""
    numbers: RowNumbers
    """`rows`, `begins` and `contexts` on the host."""
    planned: GraphAttention | None = None
    """Attention that has already planned for these rows, because planning cannot be captured in a
    graph; None: not planned."""

    def after_row(self, rows: int) -> tuple[TokenLayout, TokenLayout]:
        """Layouts of the first `rows` rows, which extend, and of the other rows, each as if it were
        a whole step."""
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
    """Rule for layers with other attention than the plain softmax over all earlier tokens."""

    window_tokens: int | None = None
    """Number of tokens to which a token attends, itself included; None: all earlier tokens."""
    sinks: Mapping[int, Tensor] = field(default_factory=dict)
    """Sinks [heads] by layer: one more score of each head, whose share goes to no token."""

    @property
    def kind(self) -> LayerKind:
        """Kind of the layers that have this rule."""
        return LayerKind(self.window_tokens, bool(self.sinks))


class Attention(Protocol):
    """Attention of one step, over all layers."""

    def attend(self, layer: int, qkv: Tensor, head_norm: HeadNorm | None) -> Tensor:
        """qkv [n, heads + key heads + value heads, dim] → [n, heads, dim].

        Norms and rotates queries and keys, stores keys and values, and attends; pool, layout and
        angles are the step's.
        """
        ...
