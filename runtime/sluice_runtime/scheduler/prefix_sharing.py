"""Which waiting requests should wait a little longer, for a prefix that another one computes now.

Requests that arrive together with the same prompt would otherwise all compute it. Pure; knows the
tokens of requests and no tree.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

from sluice_runtime.scheduler.pages import pages_for
from sluice_runtime.scheduler.prefix_cache import TOKEN_BYTES, Match
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.settings import SchedulerSettings

WORTH_WAITING_TOKENS: Final = 32
"""So much more than the tree has must be shared."""


class BeingComputed:
    """Requests whose prompts are computed by this step or by one in flight."""

    def __init__(self, settings: SchedulerSettings, requests: Iterable[Request]) -> None:
        self._page_size = settings.page_size
        self._caches = settings.prefix_cache
        self._requests = list(requests)
        self._covered: tuple[Hashable, bytes] | None = None
        """How the last one that is covered begins."""

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def covers(self, request: Request, match: Match) -> bool:
        """Whether the tree will soon have much more of the request than `match`."""
        more_pages = pages_for(WORTH_WAITING_TOKENS, self._page_size)
        reach = (match.pages + more_pages) * self._page_size
        if not self._caches or request.scores_prompt or reach >= len(request.token_ids):
            return False
        head = request.key[: reach * TOKEN_BYTES]
        covered = any(
            other.key.startswith(head) and other.namespace == request.namespace
            for other in self._requests
        )
        if covered:
            self._covered = request.namespace, head
        return covered

    def covers_alike(self, request: Request) -> bool:
        """Whether it begins as the last one that is covered: then it is, and need not be matched.
        Thousands may wait for one prefix."""
        if self._covered is None or request.scores_prompt:
            return False
        namespace, head = self._covered
        return (
            len(request.key) > len(head)
            and request.key.startswith(head)
            and request.namespace == namespace
        )
