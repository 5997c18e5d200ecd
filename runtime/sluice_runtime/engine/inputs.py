"""Turns a batch and the rows into flat token tensors: extend rows first, then decode rows.

Knows no layer; one forward pass serves both kinds of row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sluice_runtime.engine.rows import RowTable
from sluice_runtime.layers.token_layout import ExtendSpan, TokenLayout
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.pages import pages_for


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


def build_inputs(batch: Batch, rows: RowTable, page_size: int) -> StepInputs:
    """Reads the rows as they are before this step; the deltas have been applied."""
    decode = torch.tensor(batch.decode_rows, dtype=torch.int64)
    extend_rows, extend_tokens, extend_positions = _flat_extends(batch)
    decode_positions = rows.lengths[decode]
    token_rows = torch.cat((extend_rows, decode))
    positions = torch.cat((extend_positions, decode_positions))
    spans = _spans(batch, rows, page_size)
    sampled_rows = torch.tensor(batch.sampling_rows, dtype=torch.int64)
    ends = [s.end - 1 for s, e in zip(spans, batch.extend_rows, strict=True) if e.samples]
    sampled_tokens = torch.cat(
        (torch.tensor(ends, dtype=torch.int64), torch.arange(len(extend_rows), len(token_rows)))
    )
    return StepInputs(
        token_ids=torch.cat((extend_tokens, rows.last_tokens[decode])),
        positions=positions,
        layout=TokenLayout(
            pages=rows.page_table[token_rows, positions // page_size],
            offsets=positions % page_size,
            extends=spans,
            decode_pages=_padded_pages(rows, decode, decode_positions, page_size),
            decode_contexts=decode_positions + 1,
        ),
        sampled_tokens=sampled_tokens,
        sampled_rows=sampled_rows,
        contexts=positions[sampled_tokens] + 1,
    )


def _flat_extends(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Row, token and position of every token of the extend rows."""
    rows: list[int] = []
    tokens: list[int] = []
    positions: list[int] = []
    for extend in batch.extend_rows:
        count = len(extend.token_ids)
        rows += [extend.row] * count
        tokens += extend.token_ids
        positions += range(extend.start, extend.start + count)
    return (
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(tokens, dtype=torch.int64),
        torch.tensor(positions, dtype=torch.int64),
    )


def _spans(batch: Batch, rows: RowTable, page_size: int) -> tuple[ExtendSpan, ...]:
    spans: list[ExtendSpan] = []
    begin = 0
    for extend in batch.extend_rows:
        end = begin + len(extend.token_ids)
        context = extend.start + len(extend.token_ids)
        pages = rows.page_table[extend.row, : pages_for(context, page_size)]
        spans.append(ExtendSpan(begin, end, context, pages))
        begin = end
    return tuple(spans)


def _padded_pages(rows: RowTable, decode: Tensor, positions: Tensor, page_size: int) -> Tensor:
    """[b, p], as wide as the longest row needs."""
    if not len(decode):
        return torch.empty((0, 0), dtype=torch.int64)
    width = int(positions.max()) // page_size + 1
    return rows.page_table[:, :width][decode]
