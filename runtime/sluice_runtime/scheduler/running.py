"""The requests that decode, and what a step asks of all of them.

A step that decodes gives each of them one token more; ticks count these steps. So it is known when
a request joins at which tick it has how many tokens, and until it has its last one

    computed tokens = ahead + tick

Sums over all are carried from tick to tick, and only those are looked at for whom something
changes. Knows neither rows nor the queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from itertools import chain
from typing import NamedTuple

from sluice_runtime.scheduler.new_token_ratio import RESERVED_TOKENS_CLIP, reserved_tokens
from sluice_runtime.scheduler.request import Request, rows_needing_page


class _Course(NamedTuple):
    """What a request comes to, from joining to leaving."""

    ahead: int
    """Tokens computed less ticks; of one that is not spent."""
    last_tick: int
    """From then on it is spent: its last token is drawn, or is being drawn."""

    @property
    def clipped_until(self) -> int:
        """Tick up to which more of its answer is to come than is reckoned with."""
        return self.last_tick - RESERVED_TOKENS_CLIP


class Running(Collection[Request]):
    """Requests in the order in which they began to decode."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._tick = 0
        self._courses: dict[Request, _Course] = {}
        self._spent: set[Request] = set()
        self._turning: list[dict[Request, None]] = [{} for _ in range(page_size)]
        """By tick modulo the page size: whose computed tokens are whole pages then."""
        self._clipped: dict[int, set[Request]] = defaultdict(set)
        """By `clipped_until`, while that is to come; and so are the next by `last_tick`."""
        self._ending: dict[int, set[Request]] = defaultdict(set)
        self._expected = {False: 0, True: 0}
        """Tokens that are still expected, by `ignore_eos`."""
        self._falling = {False: 0, True: 0}
        """Requests that expect one less at each tick: those neither clipped nor spent."""
        self.context_tokens = 0
        """Tokens that are computed, of all that are ready together."""

    def __len__(self) -> int:
        return len(self._courses)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._courses)

    def __contains__(self, request: object) -> bool:
        return request in self._courses

    @property
    def ready_rows(self) -> int:
        """How many the next step can decode."""
        return len(self._courses) - len(self._spent)

    def ready(self) -> list[Request]:
        """All but those whose last token is in flight."""
        if not self._spent:
            return list(self._courses)
        return [request for request in self._courses if request not in self._spent]

    def rows_needing_page(self) -> list[Request]:
        """Those that are ready and whose next token is the first of a page they do not have."""
        turning = rows_needing_page(self._turning[self._tick % self._page_size], self._page_size)
        return [request for request in turning if request not in self._spent]

    def reserved_tokens(self, ratio: float) -> float:
        """Tokens that they are expected to generate still; `ratio` is the new-token ratio."""
        return self._expected[True] + self._expected[False] * ratio

    def join(self, request: Request) -> None:
        """The step that is being made computes the last of its prompt: it decodes in the next."""
        left = max(0, request.remaining_tokens)
        course = _Course(request.computed_tokens - self._tick, self._tick + left)
        self._courses[request] = course
        self._turning[-course.ahead % self._page_size][request] = None
        if not left:
            self._spent.add(request)
            return
        self.context_tokens += request.computed_tokens
        self._expected[request.ignore_eos] += min(left, RESERVED_TOKENS_CLIP)
        self._ending[course.last_tick].add(request)
        if course.clipped_until > self._tick:
            self._clipped[course.clipped_until].add(request)
        else:
            self._falling[request.ignore_eos] += 1

    def leave(self, request: Request) -> None:
        """Does nothing for one that is not here. What the request itself says of its tokens is not
        looked at: it may have given back what it held."""
        course = self._courses.pop(request, None)
        if course is None:
            return
        del self._turning[-course.ahead % self._page_size][request]
        if request in self._spent:
            self._spent.remove(request)
            return
        self.context_tokens -= course.ahead + self._tick
        left = min(course.last_tick - self._tick, RESERVED_TOKENS_CLIP)
        self._expected[request.ignore_eos] -= left
        _cancel(self._ending, course.last_tick, request)
        if course.clipped_until > self._tick:
            _cancel(self._clipped, course.clipped_until, request)
        else:
            self._falling[request.ignore_eos] -= 1

    def advance(self, decoding: Collection[Request], steps: int = 1) -> None:
        """The next step decodes `decoding`, which are all that are ready. More steps than one only
        where nobody is spent before the last of them."""
        assert len(decoding) == self.ready_rows, "some that are ready do not decode"
        for request in decoding:
            request.computed_tokens += steps
        last = self._tick + steps
        while self._tick < last:
            self._pass_to(last if steps == 1 else self._next_event(last))

    def check_integrity(self) -> None:
        """Asserts that what is carried along is what counting would give."""
        ready = self.ready()
        assert all(request.remaining_tokens > 0 for request in ready), "one is spent, and ready"
        assert all(request.remaining_tokens <= 0 for request in self._spent), "one is not spent"
        assert self.reserved_tokens(0.5) == reserved_tokens(ready, 0.5), "the reserve is off"
        computed = sum(request.computed_tokens for request in ready)
        assert self.context_tokens == computed, "the context is off"
        needing = set(rows_needing_page(ready, self._page_size))
        assert set(self.rows_needing_page()) == needing, "a page is missed"

    def _next_event(self, last: int) -> int:
        """The first tick at which something changes but lengths, or `last`."""
        events = chain(self._clipped, self._ending)
        return min((tick for tick in events if tick < last), default=last)

    def _pass_to(self, tick: int) -> None:
        """Nothing but lengths changes before `tick`."""
        ticks, self._tick = tick - self._tick, tick
        self.context_tokens += self.ready_rows * ticks
        for ignores_eos, falling in self._falling.items():
            self._expected[ignores_eos] -= falling * ticks
        for request in self._clipped.pop(tick, ()):
            self._falling[request.ignore_eos] += 1
        for request in self._ending.pop(tick, ()):
            self._falling[request.ignore_eos] -= 1
            self.context_tokens -= self._courses[request].ahead + tick
            self._spent.add(request)


def _cancel(calendar: dict[int, set[Request]], tick: int, request: Request) -> None:
    """Takes a request out of a tick, and the tick out when it was the last."""
    calendar[tick].remove(request)
    if not calendar[tick]:
        del calendar[tick]
