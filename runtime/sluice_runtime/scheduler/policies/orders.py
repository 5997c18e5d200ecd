"""A table of admission orders, and their inputs.

A policy is a pure function of the waiting requests and a `PolicyContext`, which is made for each
step. It does not limit how long a request waits (`ageing` does), nor decide what fits.
"""

from __future__ import annotations

import heapq
import zlib
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from sluice_runtime.scheduler.request import Request

MAX_LOOKED_UP: Final = 128
"""Most waiting requests to look up in the prefix cache; looking up more costs more than it
gains."""
ANSWER_TOKENS_CLIP: Final = 4096
"""Longest answer that is counted, in tokens: clients without max_tokens rarely use the whole
limit."""
SECONDS_PER_TOKEN: Final = 0.001
"""Seconds that a token of work counts for when work is compared with waiting; only the magnitude
matters."""
PICKS: Final = 10
"""Requests of one routing key that are admitted before the next key's turn."""
LIGHT: Final = 0.3
HEAVY: Final = 0.8
WORTH_FINDING: Final = 0.1
"""Share of the waiting tokens that must be cached for an order by prefix to pay."""
LAST: Final = (1, 0)
"""Sort key after every node's."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The routing key admitted last, and how many of its requests were admitted in succession."""

    key: tuple[str, str] = ("", "")
    """The last admitted request's `Request.turn_key`."""
    picks: int = 0


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """The engine as it is before a step."""

    now: float
    """Seconds, on the clock of `Request.arrival_seconds`."""
    load: float = 0.0
    """Share of the rows or of the pages in use, whichever is larger: 0 idle, 1 full."""
    running: Collection[Request] = ()
    matched_tokens: Callable[[Request], int] | None = None
    """Leading tokens of a request that the prefix cache holds; None: there is no prefix cache."""
    matched_path: Callable[[Request], Sequence[int]] | None = None
    """Numbers of the cache's nodes on a request's path, from the root; None: there is no prefix
    cache."""
    turn: Turn = Turn()
    seed: int = 0
    ttft_seconds: float | None = None
    """Promised time from a request's arrival to its first token; None: nothing is promised."""
    token_seconds: float = 0.0
    """Predicted time to compute a prompt token; 0 while unknown."""
    ahead_seconds: float = 0.0
    """Predicted time for the rest of the prompt that is being computed."""

    def prefill_tokens(self, waiting: Sequence[Request]) -> Callable[[Request], int]:
        """Function that returns how many tokens have to be computed before a waiting request's next
        token. Cached tokens are subtracted, unless more requests wait than can be looked up."""
        matched = self.matched_tokens
        if matched is None or len(waiting) > MAX_LOOKED_UP:
            return lambda request: request.uncomputed_tokens
        return lambda request: request.uncomputed_tokens - matched(request)


Policy = Callable[[Sequence[Request], PolicyContext], Iterable[Request]]
"""(waiting requests, retracted ones first, then in order of arrival; context) → these requests in
the order of admission."""


def first_come_first_served(
    waiting: Sequence[Request], context: PolicyContext
) -> Iterable[Request]:
    """Good as a default: no request is skipped, and it costs nothing."""
    del context
    return waiting


def shuffled(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for comparison: a random order, equal for equal seeds."""
    seed = context.seed & 0xFFFFFFFF
    return sorted(waiting, key=lambda r: (zlib.crc32(r.request_id.encode(), seed), r.request_id))


def highest_priority_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good if requests differ in urgency: the highest `priority` first, and equal priorities in
    order of arrival."""
    del context
    return sorted(waiting, key=lambda request: -request.priority)


def longest_output_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for offline batches: the longest answers start first, so that no long answer runs alone
    at the end."""
    del context
    return sorted(waiting, key=lambda request: -request.remaining_tokens)


def shortest_prefill_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for the mean time to first token: many short prompts pass one long one."""
    return sorted(waiting, key=context.prefill_tokens(waiting))


def highest_response_ratio_next(
    waiting: Sequence[Request], context: PolicyContext
) -> Iterable[Request]:
    """Good for mixed requests: short ones go first, and long ones gain rank by waiting."""
    work = remaining_work(waiting, context)

    def response_ratio(request: Request) -> float:
        waited = context.now - request.waiting_since_seconds
        return waited / (work(request) * SECONDS_PER_TOKEN)

    return sorted(waiting, key=response_ratio, reverse=True)


def remaining_work(waiting: Sequence[Request], context: PolicyContext) -> Callable[[Request], int]:
    """Function that returns how many tokens a waiting request still needs: of the prompt, and at
    most of the answer; at least 1."""
    prefill = context.prefill_tokens(waiting)

    def work(request: Request) -> int:
        return max(1, prefill(request) + min(request.remaining_tokens, ANSWER_TOKENS_CLIP))

    return work


def longest_prefix_match(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for chats and shared system prompts: cached prefixes are used before they are
    evicted."""
    matched = context.matched_tokens
    if matched is None or len(waiting) > MAX_LOOKED_UP:
        return waiting
    lengths = {request.request_id: matched(request) for request in waiting}
    return sorted(waiting, key=lambda request: -lengths[request.request_id])


def depth_first_by_weight(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for long queues of prompts with common prefixes: the cache's branches are finished one
    by one, starting with the branch that most requests wait for."""
    path_of = context.matched_path
    if path_of is None:
        return waiting
    looked_up, rest = waiting[:MAX_LOOKED_UP], waiting[MAX_LOOKED_UP:]
    paths = {request.request_id: path_of(request) for request in looked_up}
    weight = Counter(node for path in paths.values() for node in path)
    # A request that ends at a node comes after requests that continue below it, which have more
    # cached. So requests with nothing cached come last, and take no pages from the others.
    order = sorted(
        looked_up,
        key=lambda request: [*((-weight[node], node) for node in paths[request.request_id]), LAST],
    )
    return [*order, *rest]


def round_robin(waiting: Sequence[Request], context: PolicyContext) -> Iterator[Request]:
    """Good for several tenants: ten requests of each routing key in turn, however many requests a
    key has."""
    queues: dict[tuple[str, str], deque[Request]] = {}
    for request in waiting:
        queues.setdefault(request.turn_key, deque()).append(request)
    turn = context.turn
    unfinished = turn.key in queues and turn.picks < PICKS
    # The keys in a circle, starting with the key whose turn it is.
    circle = sorted(queues)
    first = (bisect_left if unfinished else bisect_right)(circle, turn.key)
    circle = circle[first:] + circle[:first]
    left = PICKS - turn.picks if unfinished else PICKS
    while queues:
        for key in circle:
            queue = queues.get(key, ())
            for _ in range(min(left, len(queue))):
                yield queues[key].popleft()
            left = PICKS
            if not queue:
                queues.pop(key, None)


def least_slack_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good with a promised time to first token (`slo.ttftMilliseconds`): requests that can be in
    time come first, by deadline, then the others; none is refused."""
    if context.ttft_seconds is None:
        return waiting
    late = _late(waiting, context, context.ttft_seconds)
    in_time = (request for request in waiting if request.request_id not in late)
    by_deadline = sorted(in_time, key=lambda request: request.arrival_seconds)
    return [*by_deadline, *(request for request in waiting if request.request_id in late)]


def _late(waiting: Sequence[Request], context: PolicyContext, ttft_seconds: float) -> set[str]:
    """Ids of the requests that are given up, so that as many others as possible are in time."""
    tokens, arrivals = context.prefill_tokens(waiting), [r.arrival_seconds for r in waiting]
    work = (
        (place, tokens(waiting[place]) * context.token_seconds, arrivals[place] + ttft_seconds)
        for place in sorted(range(len(waiting)), key=arrivals.__getitem__)
    )
    late = given_up(work, context.now + context.ahead_seconds)
    return {waiting[place].request_id for place in late}


def given_up(work: Iterable[tuple[int, float, float]], begin_seconds: float) -> set[int]:
    """Places that are given up, so that as many others as possible are in time. `work`: place,
    seconds of work and deadline of each, by deadline; all of it is to do from `begin_seconds` on.

    Moore and Hodgson's rule (J. M. Moore, Management Science 15, 1968) gives the fewest late
    requests of any order. It goes through the requests by deadline; whenever the work so far
    exceeds a deadline, the largest request so far becomes late, and of equal ones the last. It
    knows requests that wait now, not later arrivals.
    """
    ends, late, kept = begin_seconds, set[int](), list[tuple[float, int]]()
    for place, seconds, deadline in work:
        heapq.heappush(kept, (-seconds, -place))
        ends += seconds
        if ends > deadline:
            largest, last = heapq.heappop(kept)
            ends += largest
            late.add(-last)
    return late


def adaptive(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good when the load is unknown: fcfs under light load, cached prefixes first under heavy load,
    priority or response ratio in between."""
    if context.matched_tokens is not None:  # both this check and the chosen policy read it
        context = replace(context, matched_tokens=cache(context.matched_tokens))
    return policy_for(waiting, context)(waiting, context)


def policy_for(waiting: Sequence[Request], context: PolicyContext) -> Policy:
    """The policy that fits the load.

    | load | order | why |
    |---|---|---|
    | under 0.3 | fcfs | every waiting request joins this step or the next: sorting is wasted work |
    | 0.3 to 0.8 | priority if waiting requests differ in it, else hrrn | first tokens count |
    | over 0.8, prefixes are cached | lpm, dfs-weight in a long queue | shortens the queue |
    | over 0.8 otherwise | hrrn | the work is the same in any order: short ones need not wait long |
    """
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
    """Whether the cache holds enough of the first waiting requests, looking up no more than
    MAX_LOOKED_UP."""
    matched = context.matched_tokens
    if matched is None:
        return False
    looked_up = waiting[:MAX_LOOKED_UP]
    tokens = sum(request.uncomputed_tokens for request in looked_up)
    return sum(map(matched, looked_up)) > WORTH_FINDING * tokens


POLICIES: Final[Mapping[str, Policy]] = {
    "fcfs": first_come_first_served,
    "lpm": longest_prefix_match,
    "dfs-weight": depth_first_by_weight,
    "lof": longest_output_first,
    "sjf": shortest_prefill_first,
    "hrrn": highest_response_ratio_next,
    "round-robin": round_robin,
    "random": shuffled,
    "priority": highest_priority_first,
    "adaptive": adaptive,
    "slack": least_slack_first,
}
"""Policies by their name in `schedulingPolicy`, without bounds on waiting."""
ALIASES: Final = {"srtf": "hrrn"}
"""Further names in `schedulingPolicy`. `srtf`: among requests that have waited equally long, `hrrn`
is shortest remaining time first."""
PREEMPTING: Final = frozenset({"priority"})
"""Policies that may retract running requests for a waiting one, and that place retracted requests
themselves."""
