"""The sampling state of each row, and the sampling of a step.

A row's parameters come with the batch that adds it, and stay on the host. Its token counts are on
the device and grow with each sampled token; those of a retracted request are restored when it gets
a row again. Logits are changed in this order: bias, penalties, then temperature and restrictions.
The host never waits for the device. Knows no request and no model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.device import Device, HostDevice
from sluice_runtime.engine.sampling.bias import LogitBias
from sluice_runtime.engine.sampling.columns import Whole
from sluice_runtime.engine.sampling.draw import sample_step_rows
from sluice_runtime.engine.sampling.logprobs import Logprobs
from sluice_runtime.engine.sampling.memory import rows_at_once
from sluice_runtime.engine.sampling.parameters import ParameterTable
from sluice_runtime.engine.sampling.penalties import Penalties
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
        self._parameters = ParameterTable(size.rows)
        self._bias = LogitBias(size.rows, device)
        self._penalties = Penalties(size.rows, size.vocabulary, size.context_tokens, device)
        self.logprobs = Logprobs(device)

    def apply(self, batch: Batch) -> None:
        """Rows dropped, then rows added."""
        for row in batch.dropped_rows:
            self._bias.drop(row)
            self._penalties.drop(row)
            self.logprobs.drop(row)
        for added in batch.added_rows:
            self._add(added)
        self._penalties.send()

    def sample(self, logits: Tensor, rows: Sequence[int], positions: Whole) -> Tensor:
        """logits: [m, v] float32 on the device, changed in place; rows, and positions of the tokens
        to be sampled: [m] on the host → [m] tokens on the device."""
        numbers = np.array(rows, np.int64)
        at_once = rows_at_once(logits.shape[1])
        if len(rows) <= at_once or not self._needs_blocks(numbers):
            return self._sample(logits, numbers, positions)
        parts = [slice(first, first + at_once) for first in range(0, len(rows), at_once)]
        tokens = [self._sample(logits[part], numbers[part], positions[part]) for part in parts]
        return torch.cat(tokens)

    def _needs_blocks(self, rows: Whole) -> bool:
        """Whether sampling these rows takes some for each token of the vocabulary or context."""
        if self._backend.sample_rows is None and self._parameters.any_draws(rows):
            return True
        return self._penalties.any_of(rows)

    def _sample(self, logits: Tensor, rows: Whole, positions: Whole) -> Tensor:
        self._bias.apply(logits, rows, positions)
        penalised = self._penalties.of(rows)
        if penalised is not None:
            self._penalties.apply(logits, penalised)
        parameters = self._parameters.of(rows, positions)
        tokens = sample_step_rows(logits, parameters, self._device, self._backend)
        if penalised is not None:
            self._penalties.count(penalised, rows, tokens)
        return tokens

    def _add(self, added: RowAdded) -> None:
        row, sampling, prompt = added.row, added.sampling, added.prompt_tokens
        self._parameters.add(row, sampling)
        self._bias.add(row, sampling.logit_bias)
        self._bias.forbid(row, added.stop_token_ids, prompt + sampling.min_tokens)
        self.logprobs.add(added)
        if sampling.penalises:
            self._penalties.add(row, sampling, added.history[:prompt], added.history[prompt:])
