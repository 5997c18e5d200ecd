"""A scheduler that takes many decode steps at once, if they change nothing but lengths.

Between arrivals and ends of answers, every step repeats the previous step with one more token in
each row. Taking such steps at once leaves the scheduler in the state that single steps would. All
other steps are the engine scheduler's own.
"""

from __future__ import annotations

from collections.abc import Collection

from sluice_runtime.scheduler.batch import ForwardMode
from sluice_runtime.scheduler.kv_allocator import pages_for
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.scheduler import Scheduler


class FastForwardScheduler(Scheduler):
    """The engine's scheduler, and `fast_forward_decode`."""

    def fast_forward_decode(self, max_steps: int, now: float) -> int:
        """Takes up to `max_steps` decode steps that change only lengths; returns how many it took.
        Every row repeats its last token, and the queue keeps its present order."""
        if self._pending or self._aborting or self._deltas or self._table.prefilling:
            return 0
        running, page_size = self._table.running, self._settings.page_size
        max_steps = equal_steps(running, self._kv.available_pages, page_size, max_steps)
        head, steps = next(self._planner.in_order(now), None), 0
        while steps < max_steps and not (head and self._planner.would_admit(head)):
            stride = 1 if head else max_steps
            self._take(stride)
            steps += stride
        self._step += steps
        self._counts.steps[ForwardMode.DECODE] += steps
        self._pacing.rest()
        return steps

    def _take(self, steps: int) -> None:
        running, page_size = self._table.running, self._settings.page_size
        running.advance(running, steps)
        for request in running:
            request.token_ids += request.token_ids[-1:] * steps
            missing = pages_for(request.computed_tokens, page_size) - len(request.page_ids)
            for _ in range(missing):
                self._kv.append_pages([request])
        for _ in range(steps):
            self._ratio.decay()


def equal_steps(
    running: Collection[Request], available_pages: int, page_size: int, max_steps: int
) -> int:
    """Number of decode steps, up to `max_steps`, before any answer gets its last token or pages run
    out."""
    steps = min([max_steps, *(request.remaining_tokens - 1 for request in running)])
    if steps < 1 or not running:
        return 0
    # Rows that open a page in the first step need the most pages.
    if len(running) * pages_for(steps, page_size) <= available_pages:
        return steps
    decrease = 1
    while _pages_opened(running, steps, page_size) > available_pages:
        steps, decrease = steps - decrease, decrease * 2
        if steps < 1:
            return 0
    return steps


def _pages_opened(running: Collection[Request], steps: int, page_size: int) -> int:
    return sum(
        max(0, pages_for(request.computed_tokens + steps, page_size) - len(request.page_ids))
        for request in running
    )
