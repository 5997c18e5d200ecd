"""The waiting queue: arrival order, with retracted requests in front. Knows no policy."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from sluice_runtime.scheduler.request import Request


class WaitingQueue:
    """Requests by id; every operation takes constant time, and so does the token count."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self.tokens = 0
        """Tokens to prefill, of all that wait."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def append(self, request: Request) -> None:
        self._requests[request.request_id] = request
        self.tokens += request.uncomputed_tokens

    def put_back(self, request: Request) -> None:
        """A retracted request: it waits in front of all others."""
        self.append(request)
        self._requests.move_to_end(request.request_id, last=False)

    def remove(self, request: Request) -> None:
        """Before its `computed_tokens` change."""
        del self._requests[request.request_id]
        self.tokens -= request.uncomputed_tokens
