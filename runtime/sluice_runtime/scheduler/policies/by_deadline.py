"""The order for a promised time to the first token: nobody is computed in vain while others wait.

Which requests can still be in time is decided by Moore and Hodgson's rule (J. M. Moore, Management
Science 15, 1968), which leaves as few late as any order can: deadlines in order, and whenever the
sum of the work misses one, the largest so far is given up, of equal ones the last. It knows what
waits now, not what comes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from sluice_runtime.scheduler.policies.context import PolicyContext
from sluice_runtime.scheduler.request import Request


def least_slack_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good with a promised time to the first token (`slo.ttftMilliseconds`): the nearest deadline
    first of those that can be kept, then the others; nobody is refused."""
    if context.ttft_seconds is None:
        return waiting
    late = _late(waiting, context, context.ttft_seconds)
    in_time = (request for request in waiting if request.request_id not in late)
    by_deadline = sorted(in_time, key=lambda request: request.arrival_seconds)
    return [*by_deadline, *(request for request in waiting if request.request_id in late)]


def _late(waiting: Sequence[Request], context: PolicyContext, ttft_seconds: float) -> set[str]:
    """Those that are given up, so that the most others have their first token in time."""
    tokens = context.prefill_tokens(waiting)
    ends, late, kept = context.now + context.ahead_seconds, set[str](), list[tuple[float, int]]()
    order = sorted(range(len(waiting)), key=lambda place: waiting[place].arrival_seconds)
    for place in order:
        request = waiting[place]
        work = tokens(request) * context.token_seconds
        heapq.heappush(kept, (-work, -place))
        ends += work
        if ends > request.arrival_seconds + ttft_seconds:
            largest, last = heapq.heappop(kept)
            ends += largest
            late.add(waiting[-last].request_id)
    return late
