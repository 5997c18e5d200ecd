"""Runs batches: applies deltas to the rows, one forward pass, one sampled token a sampling row.

Knows the model and the pool, not requests: what a token means is the scheduler's to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
from sluice_runtime.scheduler.batch import Batch, ForwardMode, SampledTokens

Scores = dict[int, TokenLogprob]
"""By place among the step's sampling rows."""
LogitsSeen = Callable[[Batch, Tensor], None]
"""Called with each step's logits [m, vocabulary]; agreement tests listen here."""


@dataclass(frozen=True)
class RunnerSettings:
    """Sizes of the row table."""

    rows: int
    context_length_tokens: int


class Runner:
    """One device's share of a step."""

    def __init__(
        self,
        model: Decoder,
        pool: PagePool,
        settings: RunnerSettings,
        matchers: Matchers,
        on_logits: LogitsSeen | None = None,
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
        self._sampling.apply(batch)
        self._matchers.follow(batch)
        if batch.mode is ForwardMode.IDLE:
            return SampledTokens(batch.step)
        inputs = build_inputs(batch, self._rows)
        count = len(inputs.token_ids)
        with allocation(
            f"{batch.mode} step",
            f"{count} tokens of activations",
            "chunkSize or kvPoolTokens",
            StepOutOfMemoryError,
        ):
            tokens, scores = self._compute(batch, inputs)
        self._advance(inputs, tokens)
        drawn = tuple(tokens.tolist())
        self._matchers.advance(batch.sampling_rows, drawn)
        prompts = self._sampling.logprobs.finished(batch)
        return SampledTokens(
            batch.step,
            drawn,
            tuple(map(scores.get, range(len(drawn)))) if scores else (),
            tuple(map(prompts.get, batch.sampling_rows)) if prompts else (),
        )

    def _compute(self, batch: Batch, inputs: StepInputs) -> tuple[Tensor, Scores]:
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
        seen = self._sampling.logprobs.see(logits, batch.sampling_rows)
        self._matchers.mask(logits, batch.sampling_rows, inputs.contexts)
        tokens = self._sampling.sample(logits, inputs.sampled_rows, inputs.contexts)
        return tokens, seen.of(tokens) if seen else {}

    def _advance(self, inputs: StepInputs, tokens: Tensor) -> None:
        self._rows.lengths[inputs.layout.rows] = inputs.layout.contexts
        # A row that got NO_TOKEN may be in the next step already: what comes of it there is
        # dropped, but it is an input.
        self._rows.last_tokens[inputs.sampled_rows] = tokens.clamp(min=0)
