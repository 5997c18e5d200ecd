"""Memory that sampling takes, by rows, vocabulary and context. Measured; knows no tensor."""

from __future__ import annotations

from typing import Final

TABLE_BYTES: Final = 4
"""Bytes for each row as long as the engine runs: per token of the vocabulary (a count, int32), and
per token of its context (a list, int32)."""
LOGIT_BYTES: Final = 8
"""Memory for each logit in a step, until its tokens are sampled: a float32 logit, and the
log-probability of rows that ask for it."""
MASK_BYTES: Final = 10
"""Memory for each logit while grammar masks are applied: bits, marks, and two copies."""
WORK_BYTES: Final = 40
"""Memory for each token of the vocabulary while a row is sampled that has them sorted, in float64,
or for each token of its list while a row is penalised. Rows without penalties need none if all take
their most probable token, or if one kernel samples whole rows."""
WORK_AT_ONCE_BYTES: Final = 256 << 20
"""Work per block of rows that are sampled together, if some need any. It is enough for every
operation to fill a GPU; on a CPU larger blocks would be no faster."""


def rows_at_once(vocabulary_size: int) -> int:
    """Rows that are sampled together where some need work, 1 at least."""
    return max(1, WORK_AT_ONCE_BYTES // (WORK_BYTES * vocabulary_size))


def sampling_bytes(rows: int, vocabulary_size: int, context_tokens: int) -> int:
    """Memory of the tables, and of the costliest step of so many rows, whatever requests ask
    for."""
    tokens = rows * vocabulary_size
    table = TABLE_BYTES * (tokens + rows * (context_tokens + 1))
    at_once = min(rows, rows_at_once(vocabulary_size))
    work = WORK_BYTES * at_once * max(vocabulary_size, context_tokens)
    return table + tokens * LOGIT_BYTES + max(tokens * MASK_BYTES, work)
