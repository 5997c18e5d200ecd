"""Memory that sampling takes, by rows, vocabulary and context. Measured; knows no tensor."""

from __future__ import annotations

from typing import Final

TABLE_BYTES: Final = 4
"""As long as the engine runs, for each row: a count of each token (int32), and a list of the tokens
of its context (int32)."""
LOGIT_BYTES: Final = 8
"""In a step, until its tokens are sampled: a float32 logit, and the log-probability of rows that
ask for it."""
MASK_BYTES: Final = 10
"""While grammar masks are applied, in addition to the logits: bits, marks, and two copies."""
WORK_BYTES: Final = 40
"""While a row is sampled that has all tokens of the vocabulary sorted, in float64; the same while a
row is penalised, for each token of its list. Rows without penalties need none of it if all of them
take their most probable token, or if one kernel samples whole rows."""
WORK_AT_ONCE_BYTES: Final = 256 << 20
"""Rows are sampled in blocks of this much work, if some need any: enough for every operation to
fill a GPU, and on a CPU larger blocks would be no faster."""


def rows_at_once(vocabulary_size: int) -> int:
    """Rows that are sampled together where some need work, 1 at least."""
    return max(1, WORK_AT_ONCE_BYTES // (WORK_BYTES * vocabulary_size))


def sampling_bytes(rows: int, vocabulary_size: int, context_tokens: int) -> int:
    """Tables, and the most that a step of so many rows takes, whatever its requests ask for."""
    tokens = rows * vocabulary_size
    table = TABLE_BYTES * (tokens + rows * (context_tokens + 1))
    at_once = min(rows, rows_at_once(vocabulary_size))
    work = WORK_BYTES * at_once * max(vocabulary_size, context_tokens)
    return table + tokens * LOGIT_BYTES + max(tokens * MASK_BYTES, work)
