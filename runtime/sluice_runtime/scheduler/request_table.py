"""All requests that have not ended; every change of a request's phase is made here.

`RequestTable` holds requests by phase: waiting ones in `WaitingQueue`, decoding ones in `Running`.
Knows neither pages nor rows; the caller that moves a request has freed or allocated them.

Most answers end before max_tokens, so reserving all of it would leave much of the pool unused. The
new-token ratio starts at 0.7, moves with every decode step towards the share that recent
completions used, and jumps up after a retraction. Its constants are as published by SGLang (0.5.x).
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Final, NamedTuple, Protocol

from sluice_runtime.scheduler.request import TRANSITIONS, Phase, Request, rows_needing_page

INITIAL: Final = 0.7
FLOOR_SHARE: Final = 0.14
DECAY_STEPS: Final = 600
RETRACTION_LOOKAHEAD_TOKENS: Final = 20
COMPLETIONS_REMEMBERED: Final = 100
INITIAL_BETA: Final = 0.5
RESERVED_TOKENS_CLIP: Final = 4096
"""Maximum tokens of an answer that admission reserves."""


class RequestTable:
    """Every request by id, and by phase. At most one is mid-prefill."""

    def __init__(self, page_size: int) -> None:
        self._requests: dict[str, Request] = {}
        self.running = Running(page_size)
        self.waiting = WaitingQueue()
        self.prefilling: Request | None = None
        """The request whose prompt was cut."""
        self.awaiting_pages: OrderedDict[str, Request] = OrderedDict()
        """Requests that wait for a row and pages, in the order of their arrival."""
        self.preallocated: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def requests(self) -> Collection[Request]:
        return self._requests.values()

    def active(self) -> Iterator[Request]:
        """Requests that have rows."""
        yield from self.running
        yield from self.preallocated.values()
        if self.prefilling is not None:
            yield self.prefilling

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def add(self, request: Request) -> None:
        """Adds a new request to the waiting ones."""
        self._requests[request.request_id] = request
        self.waiting.add(request)

    def add_remote(self, request: Request) -> None:
        """Adds a new request whose prompt another engine computes; it waits for a row and pages."""
        request.phase = Phase.AWAITING_PAGES
        self._requests[request.request_id] = request
        _insert_by_arrival(self.awaiting_pages, request)

    def preallocate(self, request: Request) -> None:
        """Moves a request that has got a row and pages to the preallocated ones."""
        del self.awaiting_pages[request.request_id]
        _move(request, Phase.PREALLOCATED)
        self.preallocated[request.request_id] = request

    def resume(self, request: Request) -> None:
        """Moves a preallocated request to decoding: its prompt is in its pages and its first token
        is known."""
        del self.preallocated[request.request_id]
        _move(request, Phase.RUNNING)
        self.running.join(request)

    def prefill(self, request: Request, end: int, *, cut: bool) -> None:
        """Records that the step being planned computes the tokens up to `end`; if the prompt is
        cut, more steps follow."""
        request.computed_tokens = end
        if cut:
            _move(request, Phase.PREFILLING)
            self.prefilling = request
            return
        if self.prefilling is request:
            self.prefilling = None
        _move(request, Phase.RUNNING)
        self.running.join(request)

    def requeue(self, request: Request, now: float) -> None:
        """Puts a request back at the head of the queue; what it generated is prefilled again with
        its prompt."""
        self._leave(request)
        _move(request, Phase.WAITING)
        request.waiting_since_seconds = now
        request.queued_tokens = len(request.token_ids)
        request.key = request.key_of(0, len(request.token_ids))
        self.waiting.push_front(request)

    def end(self, request: Request) -> None:
        """Removes a request for good."""
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
        else:
            self._leave(request)
        _move(request, Phase.ENDED)
        request.fast_path_until_tokens = 0
        del self._requests[request.request_id]

    def _leave(self, request: Request) -> None:
        self.awaiting_pages.pop(request.request_id, None)
        self.preallocated.pop(request.request_id, None)
        self.running.leave(request)
        if self.prefilling is request:
            self.prefilling = None


def _insert_by_arrival(waiting: OrderedDict[str, Request], request: Request) -> None:
    """Inserts a request after earlier arrivals and retracted requests. Takes time for each later
    arrival; there are none unless another engine had the request before."""
    later: list[str] = []
    for other in reversed(waiting.values()):
        if other.started_seconds is not None or other.arrival_seconds <= request.arrival_seconds:
            break
        later.append(other.request_id)
    waiting[request.request_id] = request
    for request_id in reversed(later):
        waiting.move_to_end(request_id)


def _move(request: Request, phase: Phase) -> None:
    assert phase in TRANSITIONS[request.phase], f"{request.request_id}: {request.phase} to {phase}"
    request.phase = phase


class WaitingQueue:
    """Requests in order of arrival at the service, retracted ones in front. Knows no policy. All
    operations take constant time, the token count included; only adding a request that another
    engine had before takes time for each later arrival."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self.tokens = 0
        """Tokens to prefill, of all waiting requests."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        """Adds a request that is new to this engine."""
        _insert_by_arrival(self._requests, request)
        self.tokens += request.uncomputed_tokens

    def push_front(self, request: Request) -> None:
        """Adds a retracted request in front of all others."""
        self._requests[request.request_id] = request
        self._requests.move_to_end(request.request_id, last=False)
        self.tokens += request.uncomputed_tokens

    def remove(self, request: Request) -> None:
        """Removes a request; call it before its `computed_tokens` change."""
        del self._requests[request.request_id]
        self.tokens -= request.uncomputed_tokens


class _Timeline(NamedTuple):
    """Ticks of a decode request from joining to leaving."""

    tokens_minus_tick: int
    """Computed tokens less the tick: constant until the last token."""
    last_tick: int
    """Tick from which on its last token is drawn or in flight."""

    @property
    def above_clip_until(self) -> int:
        """Tick until which more than RESERVED_TOKENS_CLIP tokens, the most reserved, are still to
        come."""
        return self.last_tick - RESERVED_TOKENS_CLIP


class Running(Collection[Request]):
    """The decoding requests, in the order in which they began, with sums over them.

    A decode step gives each request one more token; a tick is one such step. So when a request
    joins, its number of tokens at each tick is known. Until its last token

        computed tokens = tokens_minus_tick + tick

    Sums are updated from tick to tick, and a step only looks at requests for which more than the
    length changes. Knows neither rows nor the queue.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._tick = 0
        self._timelines: dict[Request, _Timeline] = {}
        self._last_token_in_flight: set[Request] = set()
        self._needs_page_at_tick: list[dict[Request, None]] = [{} for _ in range(page_size)]
        """Requests whose computed tokens fill whole pages at a tick, by tick modulo the page
        size."""
        self._above_reserve_clip: dict[int, set[Request]] = defaultdict(set)
        """Requests by `above_clip_until`, while that tick is to come."""
        self._ending: dict[int, set[Request]] = defaultdict(set)
        """Requests by `last_tick`, while that tick is to come."""
        self._expected = {False: 0, True: 0}
        """Tokens that are still expected, by `ignore_eos`."""
        self._decreasing = {False: 0, True: 0}
        """Number of requests that expect one token less at each tick: those that are neither above
        the clip nor at their last token."""
        self.context_tokens = 0
        """Computed tokens of all ready requests together."""
        self._last_ticks = 0
        """Sum of `last_tick` over all ready requests."""

    def __len__(self) -> int:
        return len(self._timelines)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._timelines)

    def __contains__(self, request: object) -> bool:
        return request in self._timelines

    @property
    def ready_rows(self) -> int:
        """Number of requests that the next step can decode."""
        return len(self._timelines) - len(self._last_token_in_flight)

    def ready(self) -> list[Request]:
        """All requests except those whose last token is drawn or in flight."""
        if not self._last_token_in_flight:
            return list(self._timelines)
        return [request for request in self._timelines if request not in self._last_token_in_flight]

    def rows_needing_page(self) -> list[Request]:
        """Ready requests whose next token is the first of a page that they do not have."""
        due = self._needs_page_at_tick[self._tick % self._page_size]
        needing = rows_needing_page(due, self._page_size)
        if not self._last_token_in_flight:
            return needing
        return [request for request in needing if request not in self._last_token_in_flight]

    def reserved_tokens(self, ratio: float) -> float:
        """Tokens that all are still expected to generate; `ratio` is the new-token ratio."""
        return self._expected[True] + self._expected[False] * ratio

    def saved_share(self, ratio: float) -> float:
        """Share of memory that the ratio saves: the unreserved part of what all requests would hold
        with their whole max_tokens, prompts included. 0 without requests. `ratio`: the new-token
        ratio."""
        to_come = self._last_ticks - self._tick * self.ready_rows
        whole = self.context_tokens + to_come
        return (to_come - self.reserved_tokens(ratio)) / whole if whole else 0.0

    def join(self, request: Request) -> None:
        """Adds a request whose prompt the step being planned completes; it decodes in the next
        step."""
        self._enter(request)

    def leave(self, request: Request) -> None:
        """Removes a request if it is here. Does not read the request's token counts, which may have
        been reset already."""
        if request in self._timelines:
            self._withdraw(request)
            del self._timelines[request]

    def skip(self, request: Request, tokens: int) -> None:
        """Adds the extra tokens that the last step gave a request, beyond the one that all get. The
        request keeps its place."""
        if tokens:
            self._withdraw(request)
            request.computed_tokens += tokens
            self._enter(request)

    def advance(self, decoding: Collection[Request], steps: int = 1) -> None:
        """Advances `decoding`, which are all ready requests, by `steps` decode steps. More than one
        is allowed only if no request gets its last token before the last step."""
        assert len(decoding) == self.ready_rows, "some that are ready do not decode"
        for request in decoding:
            request.computed_tokens += steps
        last = self._tick + steps
        while self._tick < last:
            self._pass_to(last if steps == 1 else self._next_event(last))

    def check_integrity(self) -> None:
        """Asserts that the updated sums equal a fresh count."""
        ready = self.ready()
        assert all(request.remaining_tokens > 0 for request in ready), "one is spent, and ready"
        ending = self._last_token_in_flight
        assert all(request.remaining_tokens <= 0 for request in ending), "one is not spent"
        assert self.reserved_tokens(0.5) == reserved_tokens(ready, 0.5), "the reserve is off"
        computed = sum(request.computed_tokens for request in ready)
        assert self.context_tokens == computed, "the context is off"
        to_come = sum(request.remaining_tokens for request in ready)
        assert self._last_ticks - self._tick * len(ready) == to_come, "what is to come is off"
        needing = set(rows_needing_page(ready, self._page_size))
        assert set(self.rows_needing_page()) == needing, "a page is missed"

    def _enter(self, request: Request) -> None:
        left = max(0, request.remaining_tokens)
        timeline = _Timeline(request.computed_tokens - self._tick, self._tick + left)
        self._timelines[request] = timeline
        self._needs_page_at_tick[-timeline.tokens_minus_tick % self._page_size][request] = None
        if not left:
            self._last_token_in_flight.add(request)
            return
        self.context_tokens += request.computed_tokens
        self._last_ticks += timeline.last_tick
        self._expected[request.ignore_eos] += min(left, RESERVED_TOKENS_CLIP)
        self._ending[timeline.last_tick].add(request)
        if timeline.above_clip_until > self._tick:
            self._above_reserve_clip[timeline.above_clip_until].add(request)
        else:
            self._decreasing[request.ignore_eos] += 1

    def _withdraw(self, request: Request) -> None:
        timeline = self._timelines[request]
        del self._needs_page_at_tick[-timeline.tokens_minus_tick % self._page_size][request]
        if request in self._last_token_in_flight:
            self._last_token_in_flight.remove(request)
            return
        self.context_tokens -= timeline.tokens_minus_tick + self._tick
        self._last_ticks -= timeline.last_tick
        left = min(timeline.last_tick - self._tick, RESERVED_TOKENS_CLIP)
        self._expected[request.ignore_eos] -= left
        _cancel(self._ending, timeline.last_tick, request)
        if timeline.above_clip_until > self._tick:
            _cancel(self._above_reserve_clip, timeline.above_clip_until, request)
        else:
            self._decreasing[request.ignore_eos] -= 1

    def _next_event(self, last: int) -> int:
        """The first tick at which more than lengths changes, or `last`."""
        events = chain(self._above_reserve_clip, self._ending)
        return min((tick for tick in events if tick < last), default=last)

    def _pass_to(self, tick: int) -> None:
        """Moves on to `tick`; before it only lengths change."""
        ticks, self._tick = tick - self._tick, tick
        self.context_tokens += self.ready_rows * ticks
        for ignores_eos, decreasing in self._decreasing.items():
            self._expected[ignores_eos] -= decreasing * ticks
        for request in self._above_reserve_clip.pop(tick, ()):
            self._decreasing[request.ignore_eos] += 1
        for request in self._ending.pop(tick, ()):
            self._decreasing[request.ignore_eos] -= 1
            self.context_tokens -= self._timelines[request].tokens_minus_tick + tick
            self._last_ticks -= tick
            self._last_token_in_flight.add(request)


def _cancel(calendar: dict[int, set[Request]], tick: int, request: Request) -> None:
    """Removes a request from a tick's set, and the tick if the set is then empty."""
    calendar[tick].remove(request)
    if not calendar[tick]:
        del calendar[tick]


class HasOutput(Protocol):
    """Properties of a running request that the ratio reads."""

    @property
    def output_tokens(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...


class HasRemainingTokens(Protocol):
    """Properties of a request that the reserve reads."""

    @property
    def remaining_tokens(self) -> int: ...
    @property
    def ignore_eos(self) -> bool: ...


def expected_tokens(request: HasRemainingTokens) -> int:
    """Most tokens that admission expects a request to generate yet."""
    return min(request.remaining_tokens, RESERVED_TOKENS_CLIP)


def reserved_tokens(requests: Iterable[HasRemainingTokens], ratio: float) -> float:
    """Tokens that requests are still expected to generate; `ratio` is the new-token ratio."""
    return sum(expected_tokens(r) * (1.0 if r.ignore_eos else ratio) for r in requests)


class NewTokenRatio:
    """Share of max_tokens that admission reserves for a request; `value` is in (0, 1]."""

    def __init__(self, conservativeness: float) -> None:
        self.initial = min(1.0, INITIAL * conservativeness)
        self.floor = self.initial * FLOOR_SHARE
        self.value = self.initial
        self._used: deque[float] = deque(maxlen=COMPLETIONS_REMEMBERED)
        self._used_sum = 0.0

    @property
    def average_usage(self) -> float | None:
        """Mean share of max_tokens that the last completions used; None before there were any."""
        return self._used_sum / len(self._used) if self._used else None

    @property
    def beta(self) -> float:
        """Share of max_tokens that the next requests are expected to use: that of the last ones, or
        0.5 before there were any."""
        usage = self.average_usage
        return INITIAL_BETA if usage is None else usage

    @property
    def target(self) -> float:
        """Value at which the decay ends: the learnt share, never under the floor."""
        return max(self.floor, self.initial * self.beta)

    def decay(self) -> None:
        """Moves one step towards the target, after a decode step that needed no retraction."""
        step = (self.initial - self.floor) / DECAY_STEPS
        self.value += max(-step, min(step, self.target - self.value))

    def raise_after_retraction(self, running: Collection[HasOutput]) -> None:
        """Sets the ratio to slightly more than the share that the remaining requests have used."""
        tokens = sum([r.output_tokens for r in running])
        tokens += RETRACTION_LOOKAHEAD_TOKENS * len(running)
        self.value = min(1.0, tokens / (sum([r.max_tokens for r in running]) + 1))

    def reset(self) -> None:
        """Resets the ratio to its initial value; called when nothing runs or waits."""
        self.value = self.initial

    def learn(self, output_tokens: int, max_tokens: int) -> None:
        """Learns from a completion that was free to end before max_tokens."""
        if len(self._used) == COMPLETIONS_REMEMBERED:
            self._used_sum -= self._used[0]
        self._used.append(output_tokens / max(1, max_tokens))
        self._used_sum += self._used[-1]
