"""Memory that sampling takes, by rows and vocabulary. Measured; knows no tensor."""

from __future__ import annotations

from typing import Final

TABLE_BYTES: Final = 5
"""For each row and token, as long as the engine runs: a count (int32) and a mark (bool)."""
LOGIT_BYTES: Final = 8
"""In a step, until its tokens are sampled: a float32 logit, and the log-probability of rows that
ask for it."""
MASK_BYTES: Final = 10
"""While grammar masks are applied, in addition to the logits: bits, marks, and two copies."""
WORK_BYTES: Final = 40
"""While a row is sampled that is penalised and has all its tokens sorted, in float64."""
WORK_AT_ONCE_BYTES: Final = 256 << 20
"""Rows are sampled in blocks of this much work; larger blocks would be no faster."""


def rows_at_once(vocabulary_size: int) -> int:
    """Rows that are sampled together, 1 at least."""
    return max(1, WORK_AT_ONCE_BYTES // (WORK_BYTES * vocabulary_size))


def sampling_bytes(rows: int, vocabulary_size: int) -> int:
    """Tables, and the most that a step of so many rows takes, whatever its requests ask for."""
    tokens = rows * vocabulary_size
    work = WORK_BYTES * min(rows, rows_at_once(vocabulary_size)) * vocabulary_size
    return tokens * (TABLE_BYTES + LOGIT_BYTES) + max(tokens * MASK_BYTES, work)
