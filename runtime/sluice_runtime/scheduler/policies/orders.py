"""A table of admission orders, and what they look at.

A policy is a pure function of the waiting requests and a `PolicyContext`, values that are made for
each step. It does not bound the waiting (`ageing` does) and decides nothing about what fits.
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
"""Maximum waiting requests that are looked up in the prefix cache; with more, that costs more than
it gains."""
ANSWER_TOKENS_CLIP: Final = 4096
"""Maximum answer length that is counted: clients that give no max_tokens rarely use all of it."""
SECONDS_PER_TOKEN: Final = 0.001
"""Factor from work to time where waiting is weighed against it; only its magnitude matters."""
PICKS: Final = 10
"""Requests of one key that are admitted before the next key has its turn."""
LIGHT: Final = 0.3
HEAVY: Final = 0.8
WORTH_FINDING: Final = 0.1
"""Share of the waiting tokens that must be cached for an order by prefix to pay."""
LAST: Final = (1, 0)
"""Sort key after every node's."""


@dataclass(frozen=True, slots=True)
class Turn:
    """The key whose requests were admitted last, and how many of them in a row."""

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
        """A function that returns the tokens to compute before a waiting request's next one. Cached
        tokens are taken off, unless more wait than can be looked up."""
        matched = self.matched_tokens
        if matched is None or len(waiting) > MAX_LOOKED_UP:
            return lambda request: request.uncomputed_tokens
        return lambda request: request.uncomputed_tokens - matched(request)


Policy = Callable[[Sequence[Request], PolicyContext], Iterable[Request]]
"""(waiting requests, retracted ones first and then as they arrived; context) → the same requests in
the order in which they are offered to admission."""


def first_come_first_served(
    waiting: Sequence[Request], context: PolicyContext
) -> Iterable[Request]:
    """Good as a default: no request is skipped, and it costs nothing."""
    del context
    return waiting


def shuffled(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for comparing against: an order that knows nothing, and is the same for equal seeds."""
    seed = context.seed & 0xFFFFFFFF
    return sorted(waiting, key=lambda r: (zlib.crc32(r.request_id.encode(), seed), r.request_id))


def highest_priority_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good where requests are not equally urgent: the highest `priority` first, and among equals
    the first that came."""
    del context
    return sorted(waiting, key=lambda request: -request.priority)


def longest_output_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for offline batches: the longest answers start first, so that none runs on alone."""
    del context
    return sorted(waiting, key=lambda request: -request.remaining_tokens)


def shortest_prefill_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for the mean time to first token: many short prompts pass one long one."""
    return sorted(waiting, key=context.prefill_tokens(waiting))


def highest_response_ratio_next(
    waiting: Sequence[Request], context: PolicyContext
) -> Iterable[Request]:
    """Good for unlike requests together: short ones go first, long ones gain rank by waiting."""
    work = remaining_work(waiting, context)

    def response_ratio(request: Request) -> float:
        waited = context.now - request.waiting_since_seconds
        return waited / (work(request) * SECONDS_PER_TOKEN)

    return sorted(waiting, key=response_ratio, reverse=True)


def remaining_work(waiting: Sequence[Request], context: PolicyContext) -> Callable[[Request], int]:
    """A function that returns a waiting request's tokens still to compute, of the prompt and at
    most of the answer; at least 1."""
    prefill = context.prefill_tokens(waiting)

    def work(request: Request) -> int:
        return max(1, prefill(request) + min(request.remaining_tokens, ANSWER_TOKENS_CLIP))

    return work


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
    # A request that ends at a node comes after those that go on below it: they have more cached.
    # So requests with nothing cached come last, and take no pages from the others.
    order = sorted(
        looked_up,
        key=lambda request: [*((-weight[node], node) for node in paths[request.request_id]), LAST],
    )
    return [*order, *rest]


def round_robin(waiting: Sequence[Request], context: PolicyContext) -> Iterator[Request]:
    """Good for several tenants: ten requests of each routing key in turn, however many wait."""
    queues: dict[tuple[str, str], deque[Request]] = {}
    for request in waiting:
        queues.setdefault(request.turn_key, deque()).append(request)
    turn = context.turn
    unfinished = turn.key in queues and turn.picks < PICKS
    # The keys in a circle that begins at the one whose turn it is.
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
    """Good with a promised time to the first token (`slo.ttftMilliseconds`): the nearest deadline
    first of those that can be kept, then the others; nobody is refused."""
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

    Moore and Hodgson's rule (J. M. Moore, Management Science 15, 1968), which leaves as few late as
    any order can: deadlines in order, and whenever the sum of the work misses one, the largest so
    far is given up, of equal ones the last. It knows what waits now, not what comes.
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
    """Good when the load is not known: fcfs while it is light, what is cached first while it is
    heavy, priority or response ratio between."""
    if context.matched_tokens is not None:  # read here, and again by the policy that is chosen
        context = replace(context, matched_tokens=cache(context.matched_tokens))
    return policy_for(waiting, context)(waiting, context)


def policy_for(waiting: Sequence[Request], context: PolicyContext) -> Policy:
    """The policy that fits the load.

    | load | order | why |
    |---|---|---|
    | under 0.3 | fcfs | whoever waits joins this step or the next: any other order is work |
    | 0.3 to 0.8 | priority if the waiting differ in it, else hrrn | time to first token counts |
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
    """Whether the cache holds enough of the first that wait, as many as may be looked up."""
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
"""Policies by their name in `schedulingPolicy`; none bounds the waiting."""
ALIASES: Final = {"srtf": "hrrn"}
"""Further names in `schedulingPolicy`. Among requests that have waited for equally long, `hrrn` is
shortest remaining time first."""
PREEMPTING: Final = frozenset({"priority"})
"""Policies that may send running requests back for a waiting one, and place those themselves."""
