"""The decoder-only transformer that all families share. Knows tensors and layers, no request.

Shapes: n tokens of a step, flat over all rows; h hidden size; d head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sluice_runtime.kv.pool import KvScales, PagePool
from sluice_runtime.layers.adapters import AdapterBank
from sluice_runtime.layers.attention import TokenLayout
from sluice_runtime.layers.backend import Backend
from sluice_runtime.layers.dense import Linear
from sluice_runtime.layers.rope import Frequencies, angles_of
from sluice_runtime.layers.stack import LayerStack, PagedStep
from sluice_runtime.model.spec import ModelSpec
from sluice_runtime.parallel.group import SOLO, Group


@dataclass(frozen=True)
class Decoder:
    """A loaded model. `hidden` computes every token of a step, `logits` only positions where a
    token is sampled."""

    spec: ModelSpec
    embedding: Tensor
    """Embedding [vocabulary, h]; on a rank, its share of the rows."""
    layers: LayerStack
    norm: Tensor
    head: Linear
    frequencies: Frequencies
    """Frequencies of the rotary embedding."""
    backend: Backend
    group: Group = SOLO
    """Ranks that compute the model together: all call `hidden` and `logits`."""
    adapters: AdapterBank | None = None
    """Bank of the adapters that may be added to the matrices; None: the model takes no adapters."""
    kv_scales: KvScales | None = None
    """Scales of keys and values in an 8-bit pool; None: the pool has `dtype`."""
    window_frequencies: Frequencies | None = None
    """Frequencies in layers with a window; None: equal in all layers."""
    embedding_scale: Tensor | None = None
    """Factor on the embeddings, a scalar tensor of their type; None: 1."""

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def hidden(
        self, token_ids: Tensor, positions: Tensor, pool: PagePool, layout: TokenLayout
    ) -> Tensor:
        """Hidden states before the last norm; token_ids, positions: [n] → [n, h]."""
        return self.through(self.layers, self.embedded(token_ids), positions, pool, layout)

    def tapped(
        self,
        token_ids: Tensor,
        positions: Tensor,
        pool: PagePool,
        layout: TokenLayout,
        taps: Sequence[int],
    ) -> tuple[Tensor, Tensor]:
        """Hidden states as in `hidden`, and the inputs [n, taps x h] of the layers that `taps`
        lists, ascending."""
        x, states, first = self.embedded(token_ids), list[Tensor](), 0
        step = self._step(positions, pool, layout)
        for tap in taps:
            x = self.layers.part(first, tap).forward(x, step)
            states.append(x.clone())  # the next layers change it
            first = tap
        x = self.layers.part(first, self.spec.layers).forward(x, step)
        return x, torch.cat(states, dim=-1)

    def through(
        self,
        layers: LayerStack,
        hidden: Tensor,
        positions: Tensor,
        pool: PagePool,
        layout: TokenLayout,
    ) -> Tensor:
        """Hidden states [n, h] → [n, h] after `layers`, all or a part of this model's; `hidden` may
        be changed."""
        return layers.forward(hidden, self._step(positions, pool, layout))

    def _step(self, positions: Tensor, pool: PagePool, layout: TokenLayout) -> PagedStep:
        own = self.window_frequencies
        windowed = None if own is None else angles_of(own, positions)
        return PagedStep(pool, layout, angles_of(self.frequencies, positions), windowed)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits: [m, h] → [m, vocabulary], float32."""
        return self.backend.to_float(self.head_logits(hidden))

    def head_logits(self, hidden: Tensor) -> Tensor:
        """Logits as the head computes them, in `dtype`: [m, h] → [m, vocabulary]."""
        normed = self.backend.operators.rms_norm(hidden, self.norm, self.spec.norm_eps)
        return self._joined(self.head(normed))

    def embedded(self, token_ids: Tensor) -> Tensor:
        """Inputs of the first layer: [n] → [n, h]."""
        embedded = self._embedded(token_ids)
        return embedded if self.embedding_scale is None else embedded.mul_(self.embedding_scale)

    def _embedded(self, token_ids: Tensor) -> Tensor:
        """Embeddings without their scale. Each rank has part of the vocabulary and uses zeros for
        other tokens, so the ranks' sum has all embeddings."""
        if self.group.size == 1:
            return F.embedding(token_ids, self.embedding)
        own = token_ids - self.group.rank * self._share
        known = (own >= 0) & (own < len(self.embedding))
        embedded = F.embedding(own.where(known, 0), self.embedding)
        return self.group.sum(embedded.masked_fill(~known[:, None], 0))

    def _joined(self, logits: Tensor) -> Tensor:
        """Logits of all ranks: [m, this rank's share] → [m, vocabulary]."""
        if self.group.size == 1:
            return logits
        if lacking := self._share * self.group.size - self.spec.vocabulary_size:
            logits = F.pad(logits, (0, self._share - logits.shape[1]))
        joined = self.group.join(logits)
        # Contiguous, because sampling writes into flat views.
        return joined[:, :-lacking].contiguous() if lacking else joined

    @property
    def _share(self) -> int:
        """Number of vocabulary tokens on each rank; the last ranks may have fewer."""
        return -(-self.spec.vocabulary_size // self.group.size)
