"""Who is where: waiting, mid-prefill or running. Every change of phase is made here.

Knows neither pages nor rows; a request that leaves its place has given back what it held.
"""

from __future__ import annotations

from collections.abc import Collection

from sluice_runtime.scheduler.prefix_cache import key_of
from sluice_runtime.scheduler.request import Phase, Request
from sluice_runtime.scheduler.running import Running
from sluice_runtime.scheduler.waiting import WaitingQueue


class Roster:
    """All requests that have not ended; one of them at most is mid-prefill."""

    def __init__(self, page_size: int) -> None:
        self._requests: dict[str, Request] = {}
        self.running = Running(page_size)
        self.waiting = WaitingQueue()
        self.prefilling: Request | None = None
        """The request whose prompt was cut."""

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._requests

    @property
    def requests(self) -> Collection[Request]:
        return self._requests.values()

    def get(self, request_id: str) -> Request | None:
        return self._requests.get(request_id)

    def join(self, request: Request) -> None:
        """A new request waits."""
        self._requests[request.request_id] = request
        self.waiting.append(request)

    def prefill(self, request: Request, end: int, *, cut: bool) -> None:
        """Its tokens up to `end` are computed by the step; more follow if it is cut."""
        request.computed_tokens = end
        if cut:
            request.phase, self.prefilling = Phase.PREFILLING, request
            return
        if self.prefilling is request:
            self.prefilling = None
        request.phase = Phase.RUNNING
        self.running.join(request)

    def send_back(self, request: Request, now: float) -> None:
        """To the head of the queue; what it generated is prefilled again with its prompt."""
        self._leave(request)
        request.phase = Phase.WAITING
        request.waiting_since_seconds = now
        request.queued_tokens = len(request.token_ids)
        request.key = key_of(request.token_ids)
        self.waiting.put_back(request)

    def end(self, request: Request) -> None:
        """It is no one's any more."""
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
        else:
            self._leave(request)
        request.phase = Phase.ENDED
        request.plain_below = 0
        del self._requests[request.request_id]

    def _leave(self, request: Request) -> None:
        self.running.leave(request)
        if self.prefilling is request:
            self.prefilling = None
