"""The shape of a step: the few counts on which its duration depends."""

from __future__ import annotations

from typing import NamedTuple

from sluice_runtime.scheduler.batch import Batch


class StepShape(NamedTuple):
    """What one forward pass computes."""

    extend_tokens: int = 0
    """Prompt tokens."""
    extend_context_products: int = 0
    """Pairs of a prompt token and a token that it attends to, itself included."""
    decode_rows: int = 0
    decode_context_tokens: int = 0
    """Tokens that the decode rows attend to, their own included."""


def context_products(start: int, tokens: int) -> int:
    """Pairs of a token and one it attends to, for `tokens` tokens after the first `start`."""
    return tokens * start + tokens * (tokens + 1) // 2


def shape_of(batch: Batch) -> StepShape:
    """The shape of a batch."""
    extends = [(row.start, len(row.token_ids)) for row in batch.extend_rows]
    return StepShape(
        extend_tokens=sum(tokens for _, tokens in extends),
        extend_context_products=sum(context_products(*extend) for extend in extends),
        decode_rows=len(batch.decode_rows),
        decode_context_tokens=batch.decode_context_tokens,
    )
