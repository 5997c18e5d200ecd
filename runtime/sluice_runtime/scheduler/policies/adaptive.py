"""The policy that follows the load.

| load | order | why |
|---|---|---|
| under 0.3 | fcfs | whoever waits is admitted in this step or the next: any other order is work |
| 0.3 to 0.8 | priority if the waiting differ in it, else hrrn | time to first token is at stake |
| over 0.8, prefixes are cached | lpm, dfs-weight in a long queue | work saved shortens the queue |
| over 0.8 otherwise | hrrn | the work is the same in any order: short ones need not wait for long |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Final

from sluice_runtime.scheduler.policies.by_prefix import depth_first_by_weight, longest_prefix_match
from sluice_runtime.scheduler.policies.by_size import highest_response_ratio_next
from sluice_runtime.scheduler.policies.context import MAX_LOOKED_UP, Policy, PolicyContext
from sluice_runtime.scheduler.policies.simple import (
    first_come_first_served,
    highest_priority_first,
)
from sluice_runtime.scheduler.request import Request

LIGHT: Final = 0.3
HEAVY: Final = 0.8
WORTH_FINDING: Final = 0.1
"""Share of the waiting tokens that must be cached for an order by prefix to pay."""


def adaptive(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good when the load is not known: fcfs while it is light, what is cached first while it is
    heavy, priority or response ratio between."""
    if context.matched_tokens is not None:  # to choose a policy, and again by what it chooses
        context = replace(context, matched_tokens=cache(context.matched_tokens))
    return policy_for(waiting, context)(waiting, context)


def policy_for(waiting: Sequence[Request], context: PolicyContext) -> Policy:
    """The policy that the load asks for."""
    if context.load < LIGHT:
        return first_come_first_served
    if context.load > HEAVY:
        if not _prefixes_are_cached(waiting, context):
            return highest_response_ratio_next
        long = len(waiting) > MAX_LOOKED_UP
        return depth_first_by_weight if long else longest_prefix_match
    if len({request.priority for request in waiting}) > 1:
        return highest_priority_first
    return highest_response_ratio_next


def _prefixes_are_cached(waiting: Sequence[Request], context: PolicyContext) -> bool:
    """Of the first that wait, as many as may be looked up."""
    matched = context.matched_tokens
    if matched is None:
        return False
    looked_up = waiting[:MAX_LOOKED_UP]
    tokens = sum(request.uncomputed_tokens for request in looked_up)
    return sum(map(matched, looked_up)) > WORTH_FINDING * tokens
