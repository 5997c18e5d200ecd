"""Many decode steps at once, where they would change nothing but lengths: for simulations.

Between two arrivals or ends of answers every step is the one before with one token more in each
row. Taking a run of them at once leaves what requests hold as the steps themselves would. Knows
neither the queue nor time.
"""

from __future__ import annotations

from collections.abc import Collection

from sluice_runtime.scheduler.holdings import Holdings
from sluice_runtime.scheduler.pages import pages_for
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.running import Running


def alike_steps(
    running: Collection[Request], available_pages: int, page_size: int, most: int
) -> int:
    """Decode steps, `most` at most, after which no answer has its last token and no page has been
    short."""
    steps = min([most, *(request.remaining_tokens - 1 for request in running)])
    if steps < 1 or not running:
        return 0
    # A row that opens its first page at once needs the most for its steps.
    if len(running) * pages_for(steps, page_size) <= available_pages:
        return steps
    short = 1
    while _opened(running, steps, page_size) > available_pages:
        steps, short = steps - short, short * 2
        if steps < 1:
            return 0
    return steps


def take(running: Running, holdings: Holdings, page_size: int, steps: int) -> None:
    """Every row repeats its last token `steps` times."""
    running.advance(running, steps)
    for request in running:
        request.token_ids += request.token_ids[-1:] * steps
        missing = pages_for(request.computed_tokens, page_size) - len(request.page_ids)
        for _ in range(missing):
            holdings.open_page(request)


def _opened(running: Collection[Request], steps: int, page_size: int) -> int:
    """Pages that so many steps take."""
    return sum(
        max(0, pages_for(request.computed_tokens + steps, page_size) - len(request.page_ids))
        for request in running
    )
