"""The sampling state of each row, and the sampling of a step.

A row's parameters come with the batch that adds it. Its token counts grow with each sampled token;
those of a retracted request are restored when it gets a row again. Logits are changed in this
order: bias, penalties, then temperature and restrictions. Knows no request and no model.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sluice_runtime.engine.sampling.bias import LogitBias
from sluice_runtime.engine.sampling.draw import Restrictions, SamplingRows, sample
from sluice_runtime.engine.sampling.logprobs import Logprobs
from sluice_runtime.engine.sampling.memory import rows_at_once
from sluice_runtime.engine.sampling.penalties import Penalties
from sluice_runtime.layers.backend import TORCH, Backend
from sluice_runtime.scheduler.batch import Batch, RowAdded


class SamplingTable:
    """`rows` rows over one vocabulary."""

    def __init__(self, rows: int, vocabulary_size: int, backend: Backend = TORCH) -> None:
        self._backend = backend
        self._temperatures = torch.zeros(rows)
        self._top_ps = torch.zeros(rows)
        self._top_ks = torch.zeros(rows, dtype=torch.int64)
        self._min_ps = torch.zeros(rows)
        self._restricted: set[int] = set()
        """Rows with top_k, top_p or min_p."""
        self._seeds = torch.zeros(rows, dtype=torch.int64)
        self._bias = LogitBias(rows)
        self._penalties = Penalties(rows, vocabulary_size)
        self.logprobs = Logprobs()

    def apply(self, batch: Batch) -> None:
        """Rows dropped, then rows added."""
        for row in batch.dropped_rows:
            self._restricted.discard(row)
            self._bias.drop(row)
            self._penalties.drop(row)
            self.logprobs.drop(row)
        for added in batch.added_rows:
            self._add(added)

    def sample(self, logits: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """logits: [m, v] float32, changed in place; rows, and positions of the tokens to be
        sampled: [m] → [m] tokens."""
        at_once = rows_at_once(logits.shape[1])
        if len(rows) <= at_once:
            return self._sample(logits, rows, positions)
        parts = [slice(first, first + at_once) for first in range(0, len(rows), at_once)]
        sampled = [self._sample(logits[part], rows[part], positions[part]) for part in parts]
        return torch.cat(sampled)

    def _sample(self, logits: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        self._bias.apply(logits, rows, positions)
        self._penalties.apply(logits, rows)
        tokens = sample(logits, self._parameters_of(rows, positions), self._backend)
        self._penalties.count(rows, tokens)
        return tokens

    def _add(self, added: RowAdded) -> None:
        row, sampling, prompt = added.row, added.sampling, added.prompt_tokens
        self._temperatures[row] = sampling.temperature
        self._top_ps[row] = sampling.top_p
        self._top_ks[row] = sampling.top_k
        self._min_ps[row] = sampling.min_p
        if sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0:
            self._restricted.add(row)
        self._seeds[row] = sampling.seed
        self._bias.add(row, sampling.logit_bias)
        self._bias.forbid(row, added.stop_token_ids, prompt + sampling.min_tokens)
        self.logprobs.add(added)
        if sampling.penalises:
            self._penalties.add(row, sampling, added.history[:prompt], added.history[prompt:])

    def _parameters_of(self, rows: Tensor, positions: Tensor) -> SamplingRows:
        return SamplingRows(
            temperature=self._temperatures[rows],
            seed=self._seeds[rows],
            position=positions,
            restrictions=self._restrictions_of(rows) if self._restricted else None,
        )

    def _restrictions_of(self, rows: Tensor) -> Restrictions:
        return Restrictions(
            top_k=self._top_ks[rows], top_p=self._top_ps[rows], min_p=self._min_ps[rows]
        )
