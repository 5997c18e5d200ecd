"""Runs batches: applies deltas to the rows, one forward pass, one sampled token a sampling row.

A step has three parts. Prepare: the host works out what goes where, from lengths and pages alone.
Launch: copies, forward pass and sampling. On a GPU the host waits for none of them, and tokens go
from step to step there. Land: the host waits for the results and reads them. An executor runs the
steps in the order in which they were launched. An executor uses the loop's thread, or a second
thread or an asynchronous device, so that the loop can plan the next step meanwhile. Knows the model
and the pool, not requests: what a token means is up to the scheduler.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from sluice_runtime.engine.device import Device, Fetched, allocation
from sluice_runtime.engine.graphs import Capture, DecodeGraphs, GraphParts, StagedStep
from sluice_runtime.engine.rows import (
    HostInputs,
    RowState,
    StepInputs,
    host_inputs,
    step_inputs,
)
from sluice_runtime.engine.sampling.logprobs import StepLogprobs, StepScores
from sluice_runtime.engine.sampling.masks import keep_to_grammars
from sluice_runtime.engine.sampling.penalties import DraftsBefore
from sluice_runtime.errors import OutOfMemoryError, StepOutOfMemoryError
from sluice_runtime.kv.pool import PagePool
from sluice_runtime.layers.attention import GraphAttention, GraphRows
from sluice_runtime.model.decoder import Decoder
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch, ForwardMode, SampledTokens
from sluice_runtime.wire.messages import TokenLogprob

if TYPE_CHECKING:
    from sluice_runtime.engine.draft import DraftModel
    from sluice_runtime.engine.eagle import EagleDrafts

STEP_SETTINGS: Final = "chunkSize, maxRunningRequests or kvPoolTokens"
"""Settings to lower when a step runs out of memory."""
GRAPH_SETTING: Final = "cudaGraphMaxBatch"
"""Setting to lower when CUDA graphs run out of memory."""
OnLogits = Callable[[Batch, Tensor], None]
"""Callback with each step's logits [m, vocabulary]; used by the agreement tests."""

_log = logging.getLogger("sluice.engine")


class LaunchedStep:
    """A launched step whose results may not have arrived yet."""

    def __init__(self, read: Callable[[], SampledTokens]) -> None:
        self._read: Callable[[], SampledTokens] | None = read
        self._results: SampledTokens | None = None

    def land(self) -> SampledTokens:
        """Waits for the results, the first time."""
        if self._read is not None:
            self._results, self._read = self._read(), None
        assert self._results is not None
        return self._results


class Runner:
    """Runs steps on one device."""

    def __init__(
        self,
        model: Decoder,
        pool: PagePool,
        rows: RowState,
        device: Device,
        on_logits: OnLogits | None = None,
        draft: DraftModel | EagleDrafts | None = None,
    ) -> None:
        self._model = model
        self._draft = draft
        self._head: EagleDrafts | None = None
        self._pool = pool
        self._rows = rows.table
        self._sampling = rows.sampling
        self._matchers = rows.matchers
        self._adapters = rows.adapters
        self._device = device
        self._on_logits = on_logits
        self._last: LaunchedStep | None = None
        self._graphs: DecodeGraphs | None = None
        self._between_layers: Tensor | None = None
        """Hidden states [n, h] after the last group of layers, if more groups follow."""

    def forward(self, batch: Batch) -> SampledTokens:
        """Runs the step; tokens in the order of `batch.sampling_rows`."""
        return self.launch(batch).land()

    @torch.inference_mode()
    def launch(self, batch: Batch) -> LaunchedStep:
        """Launches a step; steps land in the order of their launch. On a GPU a step may be launched
        before the previous one has landed. If its rows have grammars, it lands the previous step
        itself before sampling, since masks depend on that step's tokens."""
        if batch.graph_rows is not None:
            self._capture_between_steps(batch.graph_rows)
            return LaunchedStep(partial(SampledTokens, batch.step))
        self._rows.apply(batch)
        if self._adapters is not None:
            self._adapters.apply(batch)
        if self._matchers.used:
            self._matchers.follow(batch)
        staged = self._staged(batch)
        if staged is not None:
            numbers, compute = staged.numbers, partial(self._replay, batch, staged)
        else:
            host = host_inputs(batch, self._rows)
            numbers, compute = host.rows, partial(self._compute, batch, host)
        tokens, logits = int(numbers.begins[-1]), len(batch.sampling_rows)
        tensors = f"activations of {tokens} tokens and logits of {logits} rows"
        try:
            with allocation(f"{batch.mode} step", tensors, STEP_SETTINGS, StepOutOfMemoryError):
                read = compute()
        except StepOutOfMemoryError as error:
            if self._model.group.size > 1:
                raise  # other ranks may have had enough memory, and wait for this one
            read = self._without_memory(batch, str(error))
        # Also after a step without memory: a batch launched ahead may use the rows until they are
        # dropped.
        self._rows.lengths[numbers.rows] = numbers.contexts
        self._last = LaunchedStep(read)
        return self._last

    def capture(
        self,
        batches: tuple[int, ...],
        attention: Callable[[GraphRows], GraphAttention],
        capture: Capture,
        first: Sequence[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> dict[int, float]:
        """Captures graphs of the sizes `first` of `batches`, which are ascending, and replays them
        from now on for steps that they cover. `first` includes the largest; a batch with
        `graph_rows` captures another. Needs a backend with graphs. Returns the seconds that each
        size took by `clock`, in the order of the captures."""
        model, rows = self._model, self._rows
        assert model.backend.decode_inputs is not None
        sample = self._sample_whole if self._sampling.by_kernel else None
        parts = GraphParts(model.hidden, attention, model.backend.decode_inputs, sample)
        sizes = model.spec.hidden_size, batches
        graphs = DecodeGraphs(self._pool, *sizes, self._device, rows.last_tokens)
        self._use_all_adapters()
        took_seconds = graphs.capture(parts, capture, first, clock)
        self._graphs = graphs
        return took_seconds

    def follow_with(self, head: EagleDrafts) -> None:
        """Lets `head` compute every step after the model."""
        self._head = head

    @property
    def has_head(self) -> bool:
        """Whether a draft head follows the model. Then no step uses CUDA graphs."""
        return self._head is not None

    @property
    def graph_steps(self) -> int | None:
        """Steps that CUDA graphs computed; None: there are no graphs."""
        return self._graphs.replays if self._graphs else None

    @property
    def missing_graphs(self) -> tuple[int, ...]:
        """See `engine.late_graphs.GraphSource`."""
        return self._graphs.missing if self._graphs else ()

    def lacks_graph(self, rows: int) -> int | None:
        """See `engine.late_graphs.GraphSource`."""
        return self._graphs.lacks(rows) if self._graphs else None

    def close(self) -> None:
        """Drops the graphs. Call it before ranks disconnect: NCCL waits until no graph holds one of
        its calls."""
        self._graphs = None

    @contextmanager
    def first_layer_only(self) -> Iterator[None]:
        """Makes steps in this context compute only one layer of the model. Such a step takes a
        fraction of the time and as much memory as a whole one, since layers run one after the
        other."""
        model = self._model
        self._model = replace(model, layers=model.layers.part(0, 1))
        try:
            yield
        finally:
            self._model = model

    def _capture_between_steps(self, rows: int) -> None:
        """Captures the graph of one batch size, in an engine of one rank. Without memory for it, no
        more are captured."""
        assert self._graphs is not None
        self._use_all_adapters()
        try:
            with allocation("CUDA graphs", f"a decode batch of {rows} rows", GRAPH_SETTING):
                self._graphs.capture_batch(rows)
        except OutOfMemoryError as error:
            self._graphs.give_up_missing()
            _log.warning("CUDA graphs: no more, %s", error)

    def _use_all_adapters(self) -> None:
        """Makes captured steps compute all slots of adapters."""
        if self._model.adapters is not None:
            self._model.adapters.use_all()

    def _staged(self, batch: Batch) -> StagedStep | None:
        """The rows of a decode step that graphs compute from last tokens to next ones; None: the
        step or one of its rows needs more."""
        graphs = self._graphs
        if graphs is None or not graphs.samples or batch.mode is not ForwardMode.DECODE:
            return None
        # An added row, which another engine has computed, may need more.
        if batch.added_rows or batch.draft_rows or not self._sampling.plain:
            return None
        if self._on_logits is not None or self._head is not None:
            return None
        return graphs.staged(self._rows.decoding(batch.decode_rows))

    def _replay(self, batch: Batch, step: StagedStep) -> Callable[[], SampledTokens]:
        """Launches a decode step's graphs; returns a function that reads its results."""
        assert self._graphs is not None
        self._sampling.apply(batch)
        self._rows.send()
        if self._adapters is not None:
            self._adapters.use(step.numbers)
        tokens = self._graphs.decode(step, self._rows.page_table)
        fetched = self._device.fetch([tokens])
        return partial(_results, batch, fetched, self._accepting(batch.decode_rows))

    def _compute(self, batch: Batch, host: HostInputs) -> Callable[[], SampledTokens]:
        """Launches all of the step; returns a function that reads its results."""
        self._sampling.apply(batch)
        self._rows.send()
        if batch.mode is ForwardMode.IDLE:
            return partial(SampledTokens, batch.step)
        inputs = step_inputs(host, self._rows, self._device)
        if self._adapters is not None:
            self._adapters.use(host.rows)
        asks = batch.verify_rows or batch.draft_rows
        drafts = [self._draft.propose(batch, host, inputs)] if self._draft and asks else []
        before = self._before(batch, host, inputs)
        hidden = self._hidden(inputs) if batch.layers is None else self._split(batch, inputs)
        if (logprobs := self._sampling.logprobs) is None:
            tokens, _ = self._sample(batch, host, inputs, hidden, before)
            accept = self._accepting(host.sampling_rows)
            fetched = self._device.fetch([_joined(tokens, drafts)])
            self._follow(batch, host, inputs, tokens)
            return partial(_results, batch, fetched, accept)
        prompts = logprobs.read(batch, hidden, self._model.logits)
        tokens, step_logprobs = self._sample(batch, host, inputs, hidden, before)
        scores = StepScores(prompts, step_logprobs, tokens)
        fetched = self._device.fetch([_joined(tokens, drafts), *scores.tables()])
        self._follow(batch, host, inputs, tokens)
        accept = self._accepting(host.sampling_rows)
        return partial(_scored_results, batch, fetched, accept, scores, logprobs.finished(batch))

    def _before(self, batch: Batch, host: HostInputs, inputs: StepInputs) -> DraftsBefore | None:
        """Drafts before the step's sampled tokens; None if no draft is verified. If masks need the
        drafts that a model proposed, this starts sending them to the host."""
        if not batch.verify_rows:
            return None
        read: Callable[[], list[int]] = host.token_ids.tolist
        if self._draft and self._matchers.used and self._matchers.follows(host.sampling_rows):
            fetched = self._device.fetch([inputs.token_ids])
            read = lambda: fetched()[0].tolist()  # noqa: E731
        return DraftsBefore(inputs.token_ids, host.sampled_tokens, host.sampled_drafts, read)

    def _hidden(self, inputs: StepInputs) -> Tensor:
        """Hidden states [n, h], from a CUDA graph if one fits the step."""
        if self._head is not None:
            return self._head.model_hidden(self._model, inputs, self._pool)
        token_ids, layout = inputs.token_ids, inputs.layout
        hidden = self._graphs.hidden(token_ids, layout) if self._graphs else None
        if hidden is None:
            hidden = self._model.hidden(token_ids, inputs.positions, self._pool, layout)
        return hidden

    def _follow(self, batch: Batch, host: HostInputs, inputs: StepInputs, tokens: Tensor) -> None:
        """Runs the draft head. Called after the step's results were sent, so that they do not wait
        for the head."""
        if self._head is not None:
            self._head.follow(batch, host, inputs, tokens)

    def _split(self, batch: Batch, inputs: StepInputs) -> Tensor:
        """Hidden states [n, h]: the prompt's tokens after this step's group of layers, then other
        rows' tokens after all layers."""
        assert batch.layers is not None
        first, end = batch.layers.first, batch.layers.end
        prompt, others = inputs.of_first_row()
        hidden, self._between_layers = self._between_layers, None
        if first == 0 or hidden is None:  # None: memory was short, and the prompt has failed
            hidden = self._model.embedded(prompt.token_ids)
        layers = self._model.layers.part(first, end)
        hidden = self._model.through(layers, hidden, prompt.positions, self._pool, prompt.layout)
        self._between_layers = None if batch.layers.last else hidden
        if not len(others.token_ids):
            return hidden
        return torch.cat((hidden, self._hidden(others)))

    def _sample(
        self,
        batch: Batch,
        host: HostInputs,
        inputs: StepInputs,
        hidden: Tensor,
        before: DraftsBefore | None,
    ) -> tuple[Tensor, StepLogprobs | None]:
        """Draws tokens: [n, h] → [m], and logprobs of the rows that ask. Logits are computed only
        for the m rows that sample."""
        if not len(host.sampled_tokens):
            return inputs.sampled_rows, None
        logits = self._model.logits(hidden[inputs.sampled_tokens])
        if self._on_logits is not None:
            self._on_logits(batch, logits)
        logprobs = self._sampling.logprobs
        step_logprobs = logprobs.capture(logits, host.sampling_rows) if logprobs else None
        tokens = self._drawn(host, logits, before)
        if self._model.group.size > 1:
            tokens = self._model.group.from_first(tokens)
        # A row that got NO_TOKEN may already be in a step launched ahead. Its result there is
        # dropped, but its last token must be a valid input. A verified row's last token is in the
        # next batch.
        self._rows.last_tokens.index_copy_(0, inputs.sampled_rows, tokens.clamp(min=0))
        return tokens, step_logprobs

    def _sample_whole(self, hidden: Tensor, rows: Tensor, positions: Tensor) -> Tensor:
        """Draws and keeps the tokens of rows that ask for nothing special: hidden [b, h]; rows, and
        positions of the tokens: [b] int32 → [b]. Graphs capture it, so it allocates no more when it
        runs again."""
        logits, group = self._model.head_logits(hidden), self._model.group
        if group.rank > 0:
            tokens = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        else:
            tokens = self._sampling.draw_rows(logits, rows, positions)
        if group.size > 1:
            tokens = group.from_first(tokens)
        self._rows.last_tokens.index_copy_(0, rows.long(), tokens.clamp(min=0))
        return tokens

    def _drawn(self, host: HostInputs, logits: Tensor, drafts: DraftsBefore | None) -> Tensor:
        """Draws tokens: [m, vocabulary] → [m]. Only the first rank draws; others allocate memory
        for the tokens."""
        if self._model.group.rank > 0:
            return torch.empty(len(logits), dtype=torch.int64, device=logits.device)
        if self._matchers.used and self._matchers.follows(host.sampling_rows):
            if self._last is not None:
                self._last.land()
            rows = host.sampling_rows, host.sampled_contexts
            keep_to_grammars(logits, self._matchers, *rows, drafts, self._device)
        return self._sampling.sample(logits, host.sampling_rows, host.sampled_contexts, drafts)

    def _accepting(self, rows: Sequence[int]) -> Accept:
        """A function that gives the tokens of these rows to their matchers."""
        return self._matchers.accepting(rows) if self._matchers.used else _accept_nothing

    def _without_memory(self, batch: Batch, error: str) -> Callable[[], SampledTokens]:
        """Results of a step that ran out of memory: no row has a token."""
        if logprobs := self._sampling.logprobs:
            logprobs.finished(batch)
        accept = self._accepting(batch.sampling_rows)
        tokens = (NO_TOKEN,) * len(batch.sampling_rows)

        def read() -> SampledTokens:
            accept(tokens)
            return SampledTokens(batch.step, tokens, error=error)

        return read


Accept = Callable[[Sequence[int]], None]
"""Function that gives the step's tokens to the matchers of its rows."""


def _accept_nothing(tokens: Sequence[int]) -> None:
    """Does nothing: no row has a grammar."""


@torch.inference_mode()
def _results(batch: Batch, fetched: Fetched, accept: Accept) -> SampledTokens:
    """Waits for the step, reads its tokens and gives them to its matchers."""
    (drawn,) = fetched()
    tokens, drafts = _split(batch, drawn)
    accept(tokens)
    return SampledTokens(batch.step, tokens, drafts=drafts)


@torch.inference_mode()
def _scored_results(
    batch: Batch,
    fetched: Fetched,
    accept: Accept,
    step_scores: StepScores,
    prompts: Mapping[int, list[TokenLogprob]],
) -> SampledTokens:
    """Does what `_results` does and reads the logprobs that rows asked for. `prompts`: scores of
    prompts that end in this step, by row."""
    drawn, *tables = fetched()
    tokens, drafts = _split(batch, drawn)
    accept(tokens)
    scores = step_scores.read(tables)
    return SampledTokens(
        batch.step,
        tokens,
        tuple(map(scores.get, range(len(tokens)))) if scores else (),
        tuple(map(prompts.get, batch.sampling_rows)) if prompts else (),
        drafts,
    )


def _joined(tokens: Tensor, drafts: list[Tensor]) -> Tensor:
    """Joins [m] and [drafts] to [m + drafts], so that one copy carries both."""
    return torch.cat([tokens, *drafts]) if drafts else tokens


def _split(batch: Batch, joined: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Splits the result of `_joined` into tokens and drafts."""
    numbers, tokens = joined.tolist(), len(batch.sampling_rows)
    return tuple(numbers[:tokens]), tuple(numbers[tokens:])
