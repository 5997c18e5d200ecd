"""Turns a batch and the rows into flat token tensors: extend rows first, then decode rows.

Knows no layer; one forward pass serves both kinds of row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sluice_runtime.engine.rows import RowTable
from sluice_runtime.layers.token_layout import DecodeSpan, ExtendSpan, TokenLayout
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


def build_inputs(batch: Batch, rows: RowTable, span_slots: int) -> StepInputs:
    """Reads the rows as they are before this step; the deltas have been applied.

    `span_slots`: most padded tokens of decode rows that share a span, one row at least.
    """
    page_size = rows.page_size
    extend_rows, extend_tokens, extend_positions = _flat_extends(batch)
    decode = torch.tensor(batch.decode_rows, dtype=torch.int64)
    decode_positions, order = rows.lengths[decode].sort()
    decode = decode[order]
    token_rows = torch.cat((extend_rows, decode))
    positions = torch.cat((extend_positions, decode_positions))
    extends = _extend_spans(batch, rows)
    ends = [s.end - 1 for s, e in zip(extends, batch.extend_rows, strict=True) if e.samples]
    first = len(extend_rows)
    # Back from shortest-first to the batch's order.
    sampled_tokens = torch.cat((torch.tensor(ends, dtype=torch.int64), first + order.argsort()))
    return StepInputs(
        token_ids=torch.cat((extend_tokens, rows.last_tokens[decode])),
        positions=positions,
        layout=TokenLayout(
            pages=rows.page_table[token_rows, positions // page_size],
            offsets=positions % page_size,
            extends=extends,
            decodes=_decode_spans(rows, decode, decode_positions + 1, first, span_slots),
        ),
        sampled_tokens=sampled_tokens,
        sampled_rows=torch.tensor(batch.sampling_rows, dtype=torch.int64),
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


def _extend_spans(batch: Batch, rows: RowTable) -> tuple[ExtendSpan, ...]:
    spans: list[ExtendSpan] = []
    begin = 0
    for extend in batch.extend_rows:
        end = begin + len(extend.token_ids)
        context = extend.start + len(extend.token_ids)
        pages = rows.page_table[extend.row, : pages_for(context, rows.page_size)]
        spans.append(ExtendSpan(begin, end, context, pages))
        begin = end
    return tuple(spans)


def _decode_spans(
    rows: RowTable, decode: Tensor, contexts: Tensor, first: int, span_slots: int
) -> tuple[DecodeSpan, ...]:
    """Rows, shortest first, cut into spans; `first` is the flat token of the first row."""
    page_size = rows.page_size
    pages = [pages_for(context, page_size) for context in contexts.tolist()]
    spans: list[DecodeSpan] = []
    begin = 0
    for end in range(1, len(pages) + 1):
        full = end < len(pages) and (end + 1 - begin) * pages[end] * page_size > span_slots
        if full or end == len(pages):
            page_ids = rows.page_table[:, : pages[end - 1]][decode[begin:end]]
            spans.append(DecodeSpan(first + begin, first + end, contexts[begin:end], page_ids))
            begin = end
    return tuple(spans)
