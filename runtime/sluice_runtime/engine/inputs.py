"""Turns a batch and the rows into flat token tensors: extend rows first, then decode rows.

Two stages: what the host knows, which needs no device, then what the device gets. Knows no layer;
one forward pass computes both kinds of row. The number of operations does not depend on how many
rows decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.device import Device
from sluice_runtime.engine.rows import RowTable, column
from sluice_runtime.layers.token_layout import Numbers, RowNumbers, TokenLayout
from sluice_runtime.scheduler.batch import Batch


@dataclass(frozen=True)
class HostInputs:
    """A step of n tokens in r rows, of which m get a token; known without any token drawn."""

    token_ids: Numbers
    """[n]; those of decode rows, which come last, are not known here."""
    positions: Numbers
    """[n]"""
    pages: Numbers
    """[n]"""
    offsets: Numbers
    """[n]"""
    rows: RowNumbers
    extends: int
    sampling: Numbers
    """[m] which of the r rows sample."""
    sampling_rows: tuple[int, ...]
    """[m] See `Batch.sampling_rows`."""

    @property
    def decodes(self) -> int:
        return len(self.rows.rows) - self.extends

    @property
    def sampled_contexts(self) -> Numbers:
        """[m] tokens of each sampled row after this step: the position of the sampled token."""
        return self.rows.contexts[self.sampling]


@dataclass(frozen=True)
class StepInputs:
    """n tokens, of which m are followed by a sampled one; on the device."""

    token_ids: Tensor
    """[n]"""
    positions: Tensor
    """[n]"""
    layout: TokenLayout
    sampled_tokens: Tensor
    """[m] indices into the n tokens."""
    sampled_rows: Tensor
    """[m] rows, in the order of `Batch.sampling_rows`."""


def host_inputs(batch: Batch, rows: RowTable) -> HostInputs:
    """Reads the rows after the deltas of the batch were applied and before the step runs."""
    # numpy: for such small arrays torch takes five times as long, and wakes its threads for some.
    extends, page_size = batch.extend_rows, rows.page_size
    numbers = column([*(extend.row for extend in extends), *batch.decode_rows])
    decoding = numbers[len(extends) :]
    starts = np.append(column([extend.start for extend in extends]), rows.lengths[decoding])
    counts = np.ones_like(numbers)
    counts[: len(extends)] = [len(extend.token_ids) for extend in extends]
    prompt_ids = column(chain.from_iterable(extend.token_ids for extend in extends))
    ends = counts.cumsum()
    contexts = starts + counts
    # For every token: its row, and its position in it.
    token_rows = numbers.repeat(counts)
    positions = np.arange(len(token_rows)) + (contexts - ends).repeat(counts)
    sampling = [i for i, extend in enumerate(extends) if extend.samples]
    sampling += range(len(extends), len(numbers))
    return HostInputs(
        token_ids=np.append(prompt_ids, np.zeros_like(decoding)),
        positions=positions,
        pages=rows.pages[token_rows, positions // page_size],
        offsets=positions % page_size,
        rows=RowNumbers(numbers, np.append(0, ends), contexts),
        extends=len(extends),
        sampling=column(sampling),
        sampling_rows=batch.sampling_rows,
    )


def step_inputs(host: HostInputs, rows: RowTable, device: Device) -> StepInputs:
    """One copy to the device; decode rows get their token from `rows`, which must be up to date
    there."""
    numbers, sampling = host.rows, host.sampling
    (
        token_ids, positions, pages, offsets,
        row_numbers, begins, contexts,
        sampled_tokens, sampled_rows,
    ) = device.upload((
        host.token_ids, host.positions, host.pages, host.offsets,
        numbers.rows, numbers.begins, numbers.contexts,
        numbers.begins[sampling + 1] - 1, numbers.rows[sampling],
    ))  # fmt: skip
    if host.decodes:
        decoding = row_numbers[host.extends :]
        torch.index_select(rows.last_tokens, 0, decoding, out=token_ids[-host.decodes :])
    layout = TokenLayout(
        pages=pages,
        offsets=offsets,
        page_table=rows.page_table,
        rows=row_numbers,
        begins=begins,
        contexts=contexts,
        extends=host.extends,
        numbers=numbers,
    )
    return StepInputs(token_ids, positions, layout, sampled_tokens, sampled_rows)
