"""Memory that sampling takes, by rows, vocabulary and context, from measured constants. Knows no
tensor."""

from __future__ import annotations

from typing import Final

TABLE_BYTES: Final = 4
"""Bytes that each row takes permanently per token of the vocabulary (a count, int32) and again per
token of its context (a list, int32)."""
LOGIT_BYTES: Final = 8
"""Memory for each logit in a step, until its tokens are sampled: a float32 logit, and the
log-probability of rows that ask for it."""
MASK_BYTES: Final = 10
"""Memory for each logit while grammar masks are applied: bits, marks, and two copies."""
WORK_BYTES: Final = 40
"""Bytes that a row takes while it is sampled: for each token of the vocabulary if they are sorted,
in float64, or for each token of its list if it is penalised. Without penalties rows need none if
all take their most probable token, or if one kernel samples whole rows."""
WORK_AT_ONCE_BYTES: Final = 256 << 20
"""Working memory for one block of rows that are sampled together. It is enough for every operation
to fill a GPU; on a CPU larger blocks would be no faster."""


def rows_at_once(vocabulary_size: int) -> int:
    """Rows in one block of rows that need working memory; at least 1."""
    return max(1, WORK_AT_ONCE_BYTES // (WORK_BYTES * vocabulary_size))


def sampling_bytes(rows: int, vocabulary_size: int, context_tokens: int) -> int:
    """Memory in bytes of the tables, and of a step of `rows` rows with the costliest parameters."""
    tokens = rows * vocabulary_size
    table = TABLE_BYTES * (tokens + rows * (context_tokens + 1))
    at_once = min(rows, rows_at_once(vocabulary_size))
    work = WORK_BYTES * at_once * max(vocabulary_size, context_tokens)
    return table + tokens * LOGIT_BYTES + max(tokens * MASK_BYTES, work)
