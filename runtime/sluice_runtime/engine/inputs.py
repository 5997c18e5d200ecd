"""Turns a batch and the rows into flat token tensors: extend rows first, then decode rows.

Knows no layer; one forward pass serves both kinds of row. Costs the same few operations however
many rows decode.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from sluice_runtime.engine.rows import RowTable
from sluice_runtime.layers.token_layout import TokenLayout
from sluice_runtime.scheduler.batch import Batch


@dataclass(frozen=True)
class StepInputs:
    """n tokens, of which m are followed by a sampled one."""

    token_ids: Tensor
    """[n]"""
    positions: Tensor
    """[n]"""
    layout: TokenLayout
    sampled_tokens: Tensor
    """[m] indices into the n tokens."""
    sampled_rows: Tensor
    """[m] rows, in the order of `Batch.sampling_rows`."""
    contexts: Tensor
    """[m] tokens of each sampled row after this step: the position of the sampled token."""


def build_inputs(batch: Batch, rows: RowTable) -> StepInputs:
    """Reads the rows as they are before this step; the deltas have been applied."""
    extends = batch.extend_rows
    decoding = _whole(batch.decode_rows)
    numbers = torch.cat((_whole(extend.row for extend in extends), decoding))
    starts = torch.cat((_whole(extend.start for extend in extends), rows.lengths[decoding]))
    counts = torch.cat(
        (_whole(len(extend.token_ids) for extend in extends), torch.ones_like(decoding))
    )
    prompt_ids = _whole(chain.from_iterable(extend.token_ids for extend in extends))
    ends = counts.cumsum(0)
    begins = torch.cat((ends.new_zeros(1), ends))
    contexts = starts + counts
    token_ids = torch.cat((prompt_ids, rows.last_tokens[decoding]))
    # Of every token: its row, and its position there.
    token_rows = _repeated(numbers, counts)
    positions = torch.arange(len(token_ids)) + _repeated(contexts - ends, counts)
    sampling = _sampling(batch)
    return StepInputs(
        token_ids=token_ids,
        positions=positions,
        layout=TokenLayout(
            pages=rows.page_table[token_rows, positions // rows.page_size],
            offsets=positions % rows.page_size,
            page_table=rows.page_table,
            rows=numbers,
            begins=begins,
            contexts=contexts,
            extends=len(extends),
        ),
        sampled_tokens=ends[sampling] - 1,
        sampled_rows=numbers[sampling],
        contexts=contexts[sampling],
    )


def _sampling(batch: Batch) -> Tensor:
    """[m] places, among the step's rows, of those for which a token is drawn."""
    extends, decodes = len(batch.extend_rows), len(batch.decode_rows)
    finished = [i for i, extend in enumerate(batch.extend_rows) if extend.samples]
    return torch.cat((_whole(finished), torch.arange(extends, extends + decodes)))


def _repeated(values: Tensor, counts: Tensor) -> Tensor:
    """Each value so many times. As `repeat_interleave`, which wakes all threads for any number."""
    return torch.from_numpy(np.repeat(values.numpy(), counts.numpy()))


def _whole(values: Iterable[int]) -> Tensor:
    return torch.tensor(tuple(values), dtype=torch.int64)
