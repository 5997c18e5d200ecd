"""All requests that have not ended, and the life of each: every change of phase is made here.

Knows neither pages nor rows: whoever moves a request has freed or allocated them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator

from sluice_runtime.scheduler.prefix_cache import key_of
from sluice_runtime.scheduler.request import TRANSITIONS, Phase, Request
from sluice_runtime.scheduler.running import Running


class WaitingQueue:
    """Requests in the order of their arrival, retracted ones in front. Knows no policy; every
    operation takes constant time, and so does the token count."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self.tokens = 0
        """Tokens to prefill, of all waiting requests."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def append(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self.tokens += request.uncomputed_tokens

    def push_front(self, request: Request) -> None:
        """A retracted request waits in front of all others."""
        self.append(request)
        self._requests.move_to_end(request.request_id, last=False)

    def remove(self, request: Request) -> None:
        """To be called before its `computed_tokens` change."""
        del self._requests[request.request_id]
        self.tokens -= request.uncomputed_tokens


class RequestTable:
    """At most one request is mid-prefill."""

    def __init__(self, page_size: int) -> None:
        self._requests: dict[str, Request] = {}
        self.running = Running(page_size)
        self.waiting = WaitingQueue()
        self.prefilling: Request | None = None
        """The request whose prompt was cut."""
        self.awaiting_pages: dict[str, Request] = {}
        """In the order of their arrival."""
        self.preallocated: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def requests(self) -> Collection[Request]:
        return self._requests.values()

    def active(self) -> Iterator[Request]:
        """Those that have rows."""
        yield from self.running
        yield from self.preallocated.values()
        if self.prefilling is not None:
            yield self.prefilling

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def add(self, request: Request) -> None:
        """A new request waits."""
        self._requests[request.request_id] = request
        self.waiting.append(request)

    def add_remote(self, request: Request) -> None:
        """A new request, whose prompt is computed elsewhere, waits for a row and pages."""
        request.phase = Phase.AWAITING_PAGES
        self._requests[request.request_id] = request
        self.awaiting_pages[request.request_id] = request

    def preallocate(self, request: Request) -> None:
        """It has a row and pages now."""
        del self.awaiting_pages[request.request_id]
        _move(request, Phase.PREALLOCATED)
        self.preallocated[request.request_id] = request

    def resume(self, request: Request) -> None:
        """Its prompt is in its pages and its first token is known: it decodes."""
        del self.preallocated[request.request_id]
        _move(request, Phase.RUNNING)
        self.running.join(request)

    def prefill(self, request: Request, end: int, *, cut: bool) -> None:
        """The step that is being made computes the tokens up to `end`; if the prompt is cut, more
        follow."""
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
        request.key = key_of(request.token_ids)
        self.waiting.push_front(request)

    def end(self, request: Request) -> None:
        """Removes a request for good."""
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
        else:
            self._leave(request)
        _move(request, Phase.ENDED)
        request.plain_below = 0
        del self._requests[request.request_id]

    def _leave(self, request: Request) -> None:
        self.awaiting_pages.pop(request.request_id, None)
        self.preallocated.pop(request.request_id, None)
        self.running.leave(request)
        if self.prefilling is request:
            self.prefilling = None


def _move(request: Request, phase: Phase) -> None:
    assert phase in TRANSITIONS[request.phase], f"{request.request_id}: {request.phase} to {phase}"
    request.phase = phase
