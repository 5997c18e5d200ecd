"""Runs batches: applies deltas to the rows, one forward pass, one sampled token a sampling row.

Knows the model and the pool, not requests: what a token means is up to the scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from sluice_runtime.engine.inputs import StepInputs, build_inputs
from sluice_runtime.engine.memory import allocation
from sluice_runtime.engine.rows import RowTable
from sluice_runtime.engine.sampling.table import SamplingTable
from sluice_runtime.errors import StepOutOfMemoryError
from sluice_runtime.grammar.follow.matchers import Matchers
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.messages import TokenLogprob
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch, ForwardMode, SampledTokens

Scores = dict[int, TokenLogprob]
"""By place among the step's sampling rows."""
STEP_SETTINGS: Final = "chunkSize, maxRunningRequests or kvPoolTokens"
"""Settings to lower when a step runs out of memory."""
OnLogits = Callable[[Batch, Tensor], None]
"""Called with each step's logits [m, vocabulary]; used by the agreement tests."""


@dataclass(frozen=True)
class RunnerSettings:
    """Sizes of the row table."""

    rows: int
    context_length_tokens: int


class Runner:
    """Runs steps on one device."""

    def __init__(
        self,
        model: Decoder,
        pool: PagePool,
        settings: RunnerSettings,
        matchers: Matchers,
        on_logits: OnLogits | None = None,
    ) -> None:
        self._model = model
        self._pool = pool
        self._matchers = matchers
        self._on_logits = on_logits
        max_pages = -(-settings.context_length_tokens // pool.page_size)
        clears_pages = model.backend.reads_whole_pages
        self._rows = RowTable(settings.rows, max_pages, pool, clears_pages=clears_pages)
        self._sampling = SamplingTable(settings.rows, model.spec.vocabulary_size, model.backend)

    @torch.inference_mode()
    def forward(self, batch: Batch) -> SampledTokens:
        """Runs the step; tokens in the order of `batch.sampling_rows`."""
        self._rows.apply(batch)
        self._matchers.follow(batch)
        inputs = build_inputs(batch, self._rows)
        wanted = (
            f"activations of {len(inputs.token_ids)} tokens and logits of "
            f"{len(inputs.sampled_rows)} rows"
        )
        try:
            with allocation(f"{batch.mode} step", wanted, STEP_SETTINGS, StepOutOfMemoryError):
                tokens, scores = self._compute(batch, inputs)
        except StepOutOfMemoryError as error:
            return self._without_memory(batch, inputs, str(error))
        self._advance(batch, inputs, tokens)
        prompts = self._sampling.logprobs.finished(batch)
        return SampledTokens(
            batch.step,
            tuple(tokens.tolist()),
            tuple(map(scores.get, range(len(tokens)))) if scores else (),
            tuple(map(prompts.get, batch.sampling_rows)) if prompts else (),
        )

    @contextmanager
    def first_layer_only(self) -> Iterator[None]:
        """Steps inside compute one layer of the model: they take as much memory as whole ones, as
        layers are computed one after the other, and a fraction of the time."""
        model = self._model
        self._model = replace(model, layers=model.layers.first_layer())
        try:
            yield
        finally:
            self._model = model

    def _compute(self, batch: Batch, inputs: StepInputs) -> tuple[Tensor, Scores]:
        self._sampling.apply(batch)
        if batch.mode is ForwardMode.IDLE:
            return inputs.sampled_rows, {}
        hidden = self._model.hidden(inputs.token_ids, inputs.positions, self._pool, inputs.layout)
        self._sampling.logprobs.read(batch, hidden, self._model.logits)
        return self._sample(batch, inputs, hidden)

    def _sample(self, batch: Batch, inputs: StepInputs, hidden: Tensor) -> tuple[Tensor, Scores]:
        """[n, h] → [m] tokens, and scores by place for rows that ask; logits are computed for the m
        rows that sample and no others."""
        if not len(inputs.sampled_rows):
            return inputs.sampled_rows, {}
        logits = self._model.logits(hidden[inputs.sampled_tokens])
        if self._on_logits is not None:
            self._on_logits(batch, logits)
        logprobs = self._sampling.logprobs.capture(logits, batch.sampling_rows)
        self._matchers.mask(logits, batch.sampling_rows, inputs.contexts)
        tokens = self._sampling.sample(logits, inputs.sampled_rows, inputs.contexts)
        return tokens, logprobs.of(tokens) if logprobs else {}

    def _without_memory(self, batch: Batch, inputs: StepInputs, error: str) -> SampledTokens:
        """Results of a step that ran out of memory: no row has a token. The rows advance all the
        same, since a batch that was launched ahead may use them once more before they are
        dropped."""
        tokens = torch.full_like(inputs.sampled_rows, NO_TOKEN)
        self._advance(batch, inputs, tokens)
        self._sampling.logprobs.finished(batch)
        return SampledTokens(batch.step, tuple(tokens.tolist()), error=error)

    def _advance(self, batch: Batch, inputs: StepInputs, tokens: Tensor) -> None:
        self._matchers.advance(batch.sampling_rows, tokens.tolist())
        self._rows.lengths[inputs.layout.rows] = inputs.layout.contexts
        # A row that got NO_TOKEN may already be in a step launched ahead. Its result there is
        # dropped, but its last token must be a valid input.
        self._rows.last_tokens[inputs.sampled_rows] = tokens.clamp(min=0)
