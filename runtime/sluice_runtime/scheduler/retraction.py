"""Which running requests go back to the queue when the next decode step's pages are not there.

Pure: values in, a frozen plan out; the scheduler carries it out. Compares pages with pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sluice_runtime.scheduler.lock_costs import Unlocking
from sluice_runtime.scheduler.request import Request, lock_of, opening

PREEMPTED: Final = "Preempted"
"""Reason of a plan that makes room for somebody, where no page is missing."""


@dataclass(frozen=True, slots=True)
class RetractionPlan:
    """Requests to send back, in order. `stuck`: the last one, which cannot go on even so."""

    victims: tuple[Request, ...] = ()
    stuck: Request | None = None
    reason: str = "Fits"
    message: str = "the pages of the next decode step are free"

    @property
    def needed(self) -> bool:
        """Whether anyone must go."""
        return bool(self.victims or self.stuck)

    @property
    def short(self) -> bool:
        """Whether they must because pages are missing."""
        return self.needed and self.reason != PREEMPTED


def plan_retraction(
    running: Sequence[Request],
    prefilling: Request | None,
    available_pages: int,
    page_size: int,
) -> RetractionPlan:
    """Fewest output tokens first, then longest input. The last running request is kept, and takes
    the pages of the one that is mid-prefill if it must; alone and still without room it is stuck.
    """
    if len(running) <= available_pages:
        return RetractionPlan()
    wanted = len(opening(running, page_size))
    if wanted <= available_pages:
        return RetractionPlan()
    message = f"decode wants {wanted} pages, {available_pages} are free or cached"
    order = sorted(running, key=_order)
    candidates = [*order[:-1], *([prefilling] if prefilling else [])]
    victims: list[Request] = []
    unlocking = Unlocking()
    for victim in candidates:
        victims.append(victim)
        available_pages += len(victim.page_ids) - lock_of(victim).pages
        available_pages += unlocking.add(lock_of(victim))
        wanted -= victim is not prefilling and len(opening([victim], page_size))
        if wanted <= available_pages:
            return RetractionPlan(tuple(victims), None, "PoolFull", message)
    return RetractionPlan(tuple(victims), order[-1], "PoolTooSmall", message)


def _order(request: Request) -> tuple[int, int]:
    known = len(request.token_ids)
    return known - request.prompt_tokens, -known
