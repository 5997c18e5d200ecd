"""The requests that decode, and what a step asks of all of them.

A step that decodes gives each of them one token more. So it is known when a request joins in which
step from then on a page of it is full, and in which it has its last token: sums are carried along,
and only those are looked at for whom something changes. Knows neither rows nor the queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import NamedTuple

from sluice_runtime.scheduler.new_token_ratio import (
    RESERVED_TOKENS_CLIP,
    reserved_tokens,
)
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.retraction import opening


class _Course(NamedTuple):
    """Where a request is at every tick until it leaves."""

    ahead: int
    """Tokens computed less ticks, until it is spent."""
    spent: int
    """Tick at which the last of its tokens is drawn, or being drawn."""

    @property
    def clipped(self) -> int:
        """Tick up to which more of its answer is to come than is reckoned with."""
        return self.spent - RESERVED_TOKENS_CLIP


class Running(Collection[Request]):
    """In the order in which they began to decode. Ticks are the steps that decode."""

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._requests: dict[str, Request] = {}
        self._courses: dict[str, _Course] = {}
        self._tick = 0
        self._full: list[dict[str, Request]] = [{} for _ in range(page_size)]
        """By tick modulo the page size: those that have just filled their last page."""
        self._clipped: dict[int, set[Request]] = defaultdict(set)
        """By the tick up to which they are; and those that are no more, are in none."""
        self._ending: dict[int, set[Request]] = defaultdict(set)
        """By the tick at which they are spent."""
        self._spent: set[Request] = set()
        self._reserved = {False: 0, True: 0}
        """Tokens that are expected still, by `ignore_eos`."""
        self._falling = {False: 0, True: 0}
        """What they fall by at each tick: requests that are neither clipped nor spent."""
        self.context_tokens = 0
        """Computed, of those that are ready."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __contains__(self, request: object) -> bool:
        return isinstance(request, Request) and request.request_id in self._requests

    @property
    def ready_rows(self) -> int:
        """How many the next step can decode."""
        return len(self._requests) - len(self._spent)

    def ready(self) -> list[Request]:
        """All but those whose last token is in flight."""
        if not self._spent:
            return list(self._requests.values())
        return [request for request in self if request not in self._spent]

    def opening(self) -> list[Request]:
        """Those that are ready and whose next token is the first of a page they do not have."""
        full = opening(self._full[self._tick % self._page_size].values(), self._page_size)
        return [request for request in full if request not in self._spent]

    def reserved_tokens(self, ratio: float) -> float:
        """Tokens that they are expected to generate still; `ratio` is the new-token ratio."""
        return self._reserved[True] + self._reserved[False] * ratio

    def join(self, request: Request) -> None:
        """Its prompt is computed by the step that is being made."""
        left = max(0, request.remaining_tokens)
        course = _Course(request.computed_tokens - self._tick, self._tick + left)
        self._requests[request.request_id] = request
        self._courses[request.request_id] = course
        self._full[-course.ahead % self._page_size][request.request_id] = request
        if not left:
            self._spent.add(request)
            return
        self._reserved[request.ignore_eos] += min(left, RESERVED_TOKENS_CLIP)
        self.context_tokens += request.computed_tokens
        self._ending[course.spent].add(request)
        if course.clipped > self._tick:
            self._clipped[course.clipped].add(request)
        else:
            self._falling[request.ignore_eos] += 1

    def leave(self, request: Request) -> None:
        """Wherever it goes, and whether or not it has given back what it held."""
        if self._requests.pop(request.request_id, None) is None:
            return
        course = self._courses.pop(request.request_id)
        del self._full[-course.ahead % self._page_size][request.request_id]
        if request in self._spent:
            self._spent.remove(request)
            return
        left = min(course.spent - self._tick, RESERVED_TOKENS_CLIP)
        self._reserved[request.ignore_eos] -= left
        self.context_tokens -= course.ahead + self._tick
        _take_out(self._ending, course.spent, request)
        if course.clipped > self._tick:
            _take_out(self._clipped, course.clipped, request)
        else:
            self._falling[request.ignore_eos] -= 1

    def advance(self, ready: Collection[Request], steps: int = 1) -> None:
        """The next step decodes those that are ready; or so many steps do, one after another."""
        for request in ready:
            request.computed_tokens += steps
        for _ in range(steps):
            self._advance()

    def check_integrity(self) -> None:
        """Asserts that what is carried along is what counting would give."""
        ready = self.ready()
        assert all(request.remaining_tokens > 0 for request in ready), "one is spent, and ready"
        assert all(request.remaining_tokens <= 0 for request in self._spent), "one is not spent"
        assert self.reserved_tokens(0.5) == reserved_tokens(ready, 0.5), "the reserve is off"
        computed = sum(request.computed_tokens for request in ready)
        assert self.context_tokens == computed, "the context is off"
        assert set(self.opening()) == set(opening(ready, self._page_size)), "a page is missed"

    def _advance(self) -> None:
        self._tick += 1
        self.context_tokens += self.ready_rows
        for ignores_eos, falling in self._falling.items():
            self._reserved[ignores_eos] -= falling
        for request in self._clipped.pop(self._tick, ()):
            self._falling[request.ignore_eos] += 1
        for request in self._ending.pop(self._tick, ()):
            self._falling[request.ignore_eos] -= 1
            self.context_tokens -= self._courses[request.request_id].ahead + self._tick
            self._spent.add(request)


def _take_out(calendar: dict[int, set[Request]], tick: int, request: Request) -> None:
    """A tick that nobody waits for is forgotten."""
    calendar[tick].remove(request)
    if not calendar[tick]:
        del calendar[tick]
