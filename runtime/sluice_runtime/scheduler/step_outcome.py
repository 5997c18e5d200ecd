"""What the scheduler returns: tokens for clients, and what a hand-over of prompts needs."""

from __future__ import annotations

from typing import NamedTuple

from sluice_runtime.wire.messages import TokenDelta


class FinishedChunk(NamedTuple):
    """Tokens [start, end) of a prompt whose keys and values are complete now.

    The first chunk of a request begins at 0, because what was cached is complete too; so it does
    again after a retraction. The pages stay the request's until it ends or is retracted.
    """

    request_id: str
    row: int
    start: int
    end: int
    page_ids: tuple[int, ...]
    """The pages of these tokens. All but the last chunk of a prompt end at the end of a page."""
    token_ids: tuple[int, ...]
    """As the runner computed them, behind those that were cached."""


class Preallocated(NamedTuple):
    """Where somebody else writes the keys and values of a prompt."""

    request_id: str
    page_ids: tuple[int, ...]
    """Of the whole prompt, in order."""
    cached_tokens: int
    """Leading tokens that are there already, in whole pages: nobody may write into these."""


class StepOutcome(NamedTuple):
    """What became of requests since the last call."""

    deltas: list[TokenDelta]
    finished_chunks: tuple[FinishedChunk, ...] = ()
    """Empty unless `SchedulerSettings.report_chunks`."""
