"""Orders by what of a prompt the prefix cache holds. Without one, both keep the order of arrival.

The match is the context's to find; here it is only weighed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from sluice_runtime.scheduler.policies.context import MAX_LOOKED_UP, PolicyContext
from sluice_runtime.scheduler.request import Request

LAST: Final = (1, 0)
"""Sorts after every node."""


def longest_prefix_match(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for chats and shared system prompts: what is cached is used before it is evicted."""
    matched = context.matched_tokens
    if matched is None or len(waiting) > MAX_LOOKED_UP:
        return waiting
    lengths = {request.request_id: matched(request) for request in waiting}
    return sorted(waiting, key=lambda request: -lengths[request.request_id])


def depth_first_by_weight(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for long queues of prompts that begin alike: one branch of the cache is finished before
    the next, the one that most requests wait for first."""
    path_of = context.matched_path
    if path_of is None:
        return waiting
    looked_up, rest = waiting[:MAX_LOOKED_UP], waiting[MAX_LOOKED_UP:]
    paths = {request.request_id: path_of(request) for request in looked_up}
    weight = Counter(node for path in paths.values() for node in path)
    # Who ends at a node comes after those who go on below it, who have more in the cache. So those
    # who find nothing there come last, and take no pages from those who do.
    order = sorted(
        looked_up,
        key=lambda request: [*((-weight[node], node) for node in paths[request.request_id]), LAST],
    )
    return [*order, *rest]
