"""Turns a batch and the rows into flat token tensors: extend rows first, then decode rows.

Knows no layer; one forward pass computes both kinds of row. The number of operations does not
depend on how many rows decode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sluice_runtime.engine.rows import RowTable
from sluice_runtime.layers.token_layout import TokenLayout
from sluice_runtime.scheduler.batch import Batch

Numbers = NDArray[np.int64]


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
    """Reads the rows after the deltas of the batch were applied and before the step runs."""
    # numpy: for such small arrays torch takes five times as long, and wakes its threads for some.
    extends, page_size = batch.extend_rows, rows.page_size
    numbers = _whole([*(extend.row for extend in extends), *batch.decode_rows])
    decoding = numbers[len(extends) :]
    starts = np.append(_whole([extend.start for extend in extends]), _view(rows.lengths)[decoding])
    counts = np.ones_like(numbers)
    counts[: len(extends)] = [len(extend.token_ids) for extend in extends]
    prompt_ids = _whole(list(chain.from_iterable(extend.token_ids for extend in extends)))
    ends = counts.cumsum()
    contexts = starts + counts
    # For every token: its row, and its position in it.
    token_rows = numbers.repeat(counts)
    positions = np.arange(len(token_rows)) + (contexts - ends).repeat(counts)
    sampling = [i for i, extend in enumerate(extends) if extend.samples]
    sampling += range(len(extends), len(numbers))
    return StepInputs(
        token_ids=_tensor(np.append(prompt_ids, _view(rows.last_tokens)[decoding])),
        positions=_tensor(positions),
        layout=TokenLayout(
            pages=_tensor(_view(rows.page_table)[token_rows, positions // page_size]),
            offsets=_tensor(positions % page_size),
            page_table=rows.page_table,
            rows=_tensor(numbers),
            begins=_tensor(np.append(0, ends)),
            contexts=_tensor(contexts),
            extends=len(extends),
        ),
        sampled_tokens=_tensor(ends[sampling] - 1),
        sampled_rows=_tensor(numbers[sampling]),
        contexts=_tensor(contexts[sampling]),
    )


def _whole(values: Sequence[int]) -> Numbers:
    return np.array(values, dtype=np.int64)


def _view(tensor: Tensor) -> Numbers:
    """The tensor's own memory."""
    numbers: Numbers = tensor.numpy()
    return numbers


def _tensor(numbers: Numbers) -> Tensor:
    return torch.from_numpy(numbers)
