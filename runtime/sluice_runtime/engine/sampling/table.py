"""The sampling state of each row, and the sampling of a step.

A row's parameters come with the batch that adds it, and stay on the host. Its token counts are on
the device and grow with each sampled token; those of a retracted request are restored when it gets
a row again. Logits are changed in this order: bias, penalties, then temperature and restrictions.
What no row asks for costs nothing. The host never waits for the device. Knows no request and no
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.device import Device, HostDevice, Whole
from sluice_runtime.engine.sampling.draw import ParameterTable, sample_step_rows
from sluice_runtime.engine.sampling.logprobs import Logprobs
from sluice_runtime.engine.sampling.memory import rows_at_once
from sluice_runtime.engine.sampling.penalties import LogitBias, Penalties
from sluice_runtime.layers.backend import TORCH, Backend
from sluice_runtime.scheduler.batch import Batch, RowAdded


@dataclass(frozen=True)
class TableSize:
    """Of the state that is kept."""

    rows: int
    vocabulary: int
    context_tokens: int
    """No row has more tokens."""


class SamplingTable:
    """The rows of one engine."""

    def __init__(
        self, size: TableSize, device: Device | None = None, backend: Backend = TORCH
    ) -> None:
        device = device or HostDevice()
        self._device = device
        self._backend = backend
        self._at_once = rows_at_once(size.vocabulary)
        self._parameters = ParameterTable(size.rows)
        self._bias = LogitBias(size.rows, device)
        self._penalties = Penalties(size.rows, size.vocabulary, size.context_tokens, device)
        self._logprobs = Logprobs(device)

    @property
    def logprobs(self) -> Logprobs | None:
        """None while no row asks for any."""
        return self._logprobs if self._logprobs.rows else None

    def apply(self, batch: Batch) -> None:
        """Rows dropped, then rows added."""
        for row in batch.dropped_rows:
            self._drop(row)
        for added in batch.added_rows:
            self._add(added)
        if self._penalties.rows:
            self._penalties.send()

    def sample(self, logits: Tensor, rows: Sequence[int], positions: Whole) -> Tensor:
        """logits: [m, v] float32 on the device, changed in place; rows, and positions of the tokens
        to be sampled: [m] on the host → [m] tokens on the device."""
        numbers = np.array(rows, np.int64)
        at_once = self._at_once
        if len(rows) <= at_once or not self._needs_blocks(numbers):
            return self._sample(logits, numbers, positions)
        parts = [slice(first, first + at_once) for first in range(0, len(rows), at_once)]
        tokens = [self._sample(logits[part], numbers[part], positions[part]) for part in parts]
        return torch.cat(tokens)

    def _needs_blocks(self, rows: Whole) -> bool:
        """Whether sampling these rows takes some for each token of the vocabulary or context."""
        if self._backend.sample_rows is None and self._parameters.any_draws(rows):
            return True
        return not self._penalties.rows.isdisjoint(rows.tolist())

    def _sample(self, logits: Tensor, rows: Whole, positions: Whole) -> Tensor:
        if self._bias.rows:
            self._bias.apply(logits, rows, positions)
        penalised = self._penalties.penalised_rows(rows) if self._penalties.rows else None
        if penalised is not None:
            self._penalties.apply(logits, penalised)
        parameters = self._parameters.step_parameters(rows, positions)
        tokens = sample_step_rows(logits, parameters, self._device, self._backend)
        if penalised is not None:
            self._penalties.count(penalised, rows, tokens)
        return tokens

    def _drop(self, row: int) -> None:
        if row in self._bias.rows:
            self._bias.drop(row)
        if row in self._penalties.rows:
            self._penalties.drop(row)
        if row in self._logprobs.rows:
            self._logprobs.drop(row)

    def _add(self, added: RowAdded) -> None:
        row, sampling, prompt = added.row, added.sampling, added.prompt_tokens
        self._parameters.add(row, sampling)
        if sampling.logit_bias:
            self._bias.add(row, sampling.logit_bias)
        if sampling.min_tokens:
            self._bias.forbid(row, added.stop_token_ids, prompt + sampling.min_tokens)
        if added.logprobs >= 0 or added.prompt_logprobs >= 0:
            self._logprobs.add(added)
        if sampling.penalises:
            self._penalties.add(row, sampling, added.history[:prompt], added.history[prompt:])
