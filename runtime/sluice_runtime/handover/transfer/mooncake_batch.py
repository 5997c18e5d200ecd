"""Reads pieces with Mooncake, and tracks for each whether it has ended.

A batch of many pieces fails as soon as one piece fails, while others may still write. So each piece
is a batch of its own, which by measurement costs no more, and a failed read returns once all pieces
have ended. The thread sleeps between checks, since Mooncake's own waiting calls keep a core busy.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sluice_runtime.handover.transfer.backend import MemoryPiece
from sluice_runtime.handover.transfer.mooncake_engine import LANES, PROGRESS_SECONDS
from sluice_runtime.handover.transfer.mooncake_gate import GatedEngine

WINDOW: Final = 32
"""Most pieces of one read under way at once. More would add little throughput, and with a frozen
peer the time until all have ended grows with their number."""
SETTLE_SECONDS: Final = 2.0 + 2 * PROGRESS_SECONDS * WINDOW / LANES
"""Longest time that a failed read waits for its other pieces to end: each lane gives up its pieces
one after the other, and two reads may share the lanes."""
FIRST_PAUSE_SECONDS: Final = 0.000_02
LONGEST_PAUSE_SECONDS: Final = 0.001
DONE: Final = 1
FAILED: Final = -1


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """How a read ended, and how many of its pieces have not ended."""

    end: Literal["Done", "Failed", "Late"]
    unsettled: int = 0


def read_pieces(
    engine: GatedEngine, peer: str, pieces: Sequence[MemoryPiece], deadline_seconds: float
) -> BatchOutcome:
    """Reads `pieces` until the first failure, or until `deadline_seconds` on the monotonic
    clock."""
    batches: deque[int] = deque()
    end = _read(engine, peer, pieces, deadline_seconds, batches)
    if end == "Done":
        return BatchOutcome("Done")
    settled_by = time.monotonic() + SETTLE_SECONDS
    while batches and _ended(engine, batches[0], settled_by):
        batches.popleft()
    return BatchOutcome(end, len(batches))


def any_done(engine: GatedEngine, batches: Sequence[int]) -> bool:
    """Whether at least one batch arrives. Waits until all have ended, but at most
    SETTLE_SECONDS."""
    deadline_seconds = time.monotonic() + SETTLE_SECONDS
    return DONE in [_ended(engine, batch, deadline_seconds) for batch in batches]


def _read(
    engine: GatedEngine,
    peer: str,
    pieces: Sequence[MemoryPiece],
    deadline_seconds: float,
    batches: deque[int],
) -> Literal["Done", "Failed", "Late"]:
    """Reads `pieces`. Batches that may not have ended are left in `batches`."""
    for piece in pieces:
        if len(batches) >= WINDOW and (end := _finish_first(engine, batches, deadline_seconds)):
            return end
        if (batch := engine.submit(peer, piece)) == 0:
            return "Failed"
        batches.append(batch)
    while batches:
        if end := _finish_first(engine, batches, deadline_seconds):
            return end
    return "Done"


def _finish_first(
    engine: GatedEngine, batches: deque[int], deadline_seconds: float
) -> Literal["Failed", "Late"] | None:
    status = _ended(engine, batches[0], deadline_seconds)
    if status is None:
        return "Late"
    batches.popleft()
    return None if status == DONE else "Failed"


def _ended(engine: GatedEngine, batch: int, deadline_seconds: float) -> int | None:
    """State of a batch, DONE or FAILED; None if it has not ended at `deadline_seconds`."""
    pause_seconds = FIRST_PAUSE_SECONDS
    while (status := engine.status(batch)) not in (DONE, FAILED):
        if time.monotonic() >= deadline_seconds:
            return None
        time.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, LONGEST_PAUSE_SECONDS)
    return status
