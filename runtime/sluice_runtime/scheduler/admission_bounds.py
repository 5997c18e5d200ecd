"""Bounds on admission besides the budgets of a step. Pure values; all except `Refusals` are made
anew for each step.

Refusals           which requests an engine refuses
AdapterSlots       how many different adapters the rows may have
Share              how a step is shared between a prompt that is cut and those behind it
PrefillHeadroom    pages, tokens and rows that a step has left for prompts
PrefixesInFlight   prefixes being computed, for which other requests wait a step or two
Locking            pages that locks on the prefix tree would take from the evictable ones
Unlocking          pages that become evictable if such locks are released
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sluice_runtime.scheduler.kv_allocator import KvAllocator, pages_for
from sluice_runtime.scheduler.limits import (
    Limits,
    least_answer,
    queue_full,
    refusal,
    shrunk_refusal,
    without,
)
from sluice_runtime.scheduler.prefix_cache import Lock, Match
from sluice_runtime.scheduler.prefix_node import TOKEN_BYTES, Node
from sluice_runtime.scheduler.request import Request, lock_of
from sluice_runtime.scheduler.request_table import RequestTable, Running, reserved_tokens
from sluice_runtime.scheduler.settings import SchedulerSettings
from sluice_runtime.wire.messages import Generate, Refusal, TokenDelta

CLAIM_SECONDS: Final = 5.0
"""Time that a request waits for an adapter slot before it claims one."""
JOINED_PAGES: Final = 32_768
"""Pages of cached prefixes, of all requests that join a step; a single request may have more."""
WORTH_WAITING_TOKENS: Final = 32
"""Tokens by which a prefix in flight must exceed the cached prefix to be worth waiting for."""


class Refusals:
    """The rules by which an engine refuses requests, with the reason."""

    def __init__(self, settings: SchedulerSettings, table: RequestTable, kv: KvAllocator) -> None:
        self._settings = settings
        self._table = table
        self._kv = kv

    @property
    def limits(self) -> Limits:
        """Limits for the pool that is left after pages were lost."""
        retired_tokens = self._kv.retired_pages * self._settings.page_size
        return without(self._settings.limits, retired_tokens)

    def refused(self, message: Generate, adapters: Mapping[str, str]) -> TokenDelta | None:
        """The final delta of a refused request; None if it is accepted. `adapters`: loaded adapters
        by key."""
        kind: Refusal | None = None
        if not (error := self._invalid(message)):
            error, kind = self.shrunk(len(message.token_ids), message.max_tokens), "unavailable"
        if not error:
            error = adapter_refusal(message.adapter, adapters)
        if not error:
            error, kind = queue_full(self._settings, len(self._table)), "overloaded"
        if not error:
            return None
        return TokenDelta(message.request_id, (), "error", error, refusal=kind)

    def shrunk(self, known_tokens: int, max_tokens: int) -> str | None:
        """Reason why this many tokens no longer fit, though they did when the engine started; None
        if they fit."""
        if not self._kv.retired_pages:
            return None
        answer_tokens = least_answer(max_tokens)
        return shrunk_refusal(self._settings.limits, self.limits, known_tokens, answer_tokens)

    def _invalid(self, message: Generate) -> str | None:
        if message.request_id in self._table:
            return f"request id {message.request_id!r} is in use"
        if message.max_tokens < 0:
            return f"max_tokens {message.max_tokens} is not allowed; allowed: at least 0"
        answer_tokens = least_answer(message.max_tokens)
        return refusal(self._settings.limits, len(message.prompt_ids), answer_tokens)


class AdapterSlots:
    """Adapters whose rows the next step may have: at most `most` different ones, including those of
    running rows.

    A request whose adapter has no slot is skipped. Once it has waited for CLAIM_SECONDS it claims a
    slot: the adapter in use with the fewest rows then takes no new requests until its last row has
    ended. That smallest number can only fall meanwhile, so the slot becomes free when answers that
    run now end. `add` is called for every request that joins the step.
    """

    def __init__(self, most: int, holding: Iterable[Request], now: float) -> None:
        """`holding`: requests that have rows."""
        self._most = most
        self._holding = holding
        self._now = now
        self._yielding: dict[str, str] = {}
        """The adapter that gives its slot up, by the adapter that claims it."""

    def admits(self, request: Request) -> bool:
        """Whether the request's adapter has a slot or gets one; call it in the order of
        admission."""
        adapter = request.adapter
        if not adapter:
            return True
        if adapter in self._rows:
            return adapter not in self._yielding.values()
        if len(self._rows) < self._most:
            return True
        if adapter not in self._yielding and self._is_overdue(request):
            self._claim(adapter)
        return False

    def add(self, request: Request) -> None:
        """Counts the slot of a request that joins the step."""
        if request.adapter:
            self._rows[request.adapter] += 1

    @cached_property
    def _rows(self) -> Counter[str]:
        """How many rows each adapter has."""
        return Counter(request.adapter for request in self._holding if request.adapter)

    def _is_overdue(self, request: Request) -> bool:
        return request.waiting_since_seconds < self._now - CLAIM_SECONDS

    def _claim(self, adapter: str) -> None:
        yielding = self._yielding.values()
        candidates = [(rows, name) for name, rows in self._rows.items() if name not in yielding]
        if candidates:
            self._yielding[adapter] = min(candidates)[1]


def adapter_refusal(key: str, loaded: Collection[str]) -> str | None:
    """Explains to a person why requests with this adapter are refused; None if they are
    accepted."""
    if not key or key in loaded:
        return None
    return f"adapter {key} is not loaded here; loaded: {', '.join(sorted(loaded)) or 'none'}"


@dataclass(frozen=True, slots=True)
class Share:
    """Division of one step between the cut prompt and the prompts that wait behind it.

    The cut prompt keeps half of the step, less the tokens by which it leads the others, but at
    least one page. So since it began, the others together never got more tokens than it did.
    """

    kept_tokens: int
    """Tokens kept for the cut prompt, however many others wait."""
    max_tokens: int
    """Most tokens for the others, if their weights allow it."""
    max_chunk_tokens: int
    """Most weighted tokens for the others in a step that gives the cut prompt only one page."""
    max_input_tokens: int
    """Most tokens, unweighted, for the others in a step that gives the cut prompt only one page."""
    context_tokens: int
    """Tokens that the cut prompt's next tokens attend to."""
    beginning_weight: float

    def weight(self, start: int) -> float:
        """Budget that a token attending to `start` others takes; a token of the cut prompt takes
        1."""
        begins = self.beginning_weight
        return begins + (1 - begins) * start / self.context_tokens

    def ever_fits(self, start: int, tokens: int) -> bool:
        """Whether `tokens` tokens after `start` can fit in any step together with the cut
        prompt."""
        light = tokens * self.weight(start) <= self.max_chunk_tokens
        return light and tokens <= self.max_input_tokens


def share_with(
    cut: Request, budget: int, input_tokens: int, page_size: int, beginning_weight: float
) -> Share:
    """Divides a step. `budget`: tokens that the cut prompt could have alone; `input_tokens`: most
    tokens of all prompts together."""
    half = -(-(budget - cut.lead_tokens) // 2)
    kept = max(1, pages_for(half, page_size)) * page_size
    return Share(
        kept_tokens=kept,
        max_tokens=cut.lead_tokens + kept,
        max_chunk_tokens=budget - page_size,
        max_input_tokens=input_tokens - page_size,
        context_tokens=cut.computed_tokens,
        beginning_weight=beginning_weight,
    )


@dataclass(frozen=True, slots=True)
class PrefillHeadroom:
    """Pages, tokens and rows that a step has left for prefill."""

    available_pages: int
    """Free and evictable pages, less those that a cut prompt has reserved and those that the decode
    rows take in this step."""
    reserved_tokens: float
    """Tokens that running requests are still expected to generate."""
    decode_rows: int
    """Rows that share the step's budgets; 0 when batches are not mixed."""
    rows: int
    """Requests that may still join."""
    alone: bool
    """Whether no other request holds or needs a page."""


def headroom_beside(
    running: Running,
    prefilling: Request | None,
    preallocated: Iterable[Request],
    settings: SchedulerSettings,
    ratio: float,
    available_pages: int,
    free_rows: int,
) -> PrefillHeadroom:
    """Headroom for prefill beside running requests and those that have pages and will run. `ratio`:
    the new-token ratio."""
    coming = [*([prefilling] if prefilling else []), *preallocated]
    return PrefillHeadroom(
        available_pages=available_pages - len(running.rows_needing_page()),
        reserved_tokens=running.reserved_tokens(ratio) + reserved_tokens(coming, ratio),
        decode_rows=running.ready_rows if settings.mixed else 0,
        rows=free_rows,
        alone=not (running or coming),
    )


_Part = tuple[Hashable, int, bytes]
"""Namespace of a request, its cached pages, and the tokens behind these that are compared first."""


class PrefixesInFlight:
    """Requests whose prompts this step or a step in flight computes.

    Others with the same prefix wait for these; otherwise requests that arrive together would all
    compute it. Two that have the same prefix have the same cached pages, except scored prompts,
    which are computed whole. So looking one up takes constant time.
    """

    def __init__(self, settings: SchedulerSettings, requests: Iterable[Request]) -> None:
        """`requests`: those that have started and add what they compute to the prefix tree."""
        self._page_size = settings.page_size
        self._more_tokens = pages_for(WORTH_WAITING_TOKENS, self._page_size) * self._page_size
        self._caches = settings.prefix_cache
        self._requests: defaultdict[_Part, list[Request]] = defaultdict(list)
        self._last_head: tuple[Hashable, bytes] | None = None
        """Namespace and first tokens of the last request that was covered."""
        for request in requests:
            self.add(request, lock_of(request).pages)

    def add(self, request: Request, cached_pages: int) -> None:
        """Adds a request that computes what follows its cached pages."""
        self._requests[self._part(request, cached_pages)].append(request)

    def covers(self, request: Request, match: Match) -> bool:
        """Whether the prefix tree will soon hold much more of the request than `match`."""
        reach = match.pages * self._page_size + self._more_tokens
        if not self._caches or request.scores_prompt or reach >= len(request.token_ids):
            return False
        alike = self._requests.get(self._part(request, match.pages))
        if not alike:
            return False
        head = request.key[: reach * TOKEN_BYTES]
        covered = any(other.key.startswith(head) for other in alike)
        if covered:
            self._last_head = request.namespace, head
        return covered

    def same_head_as_last(self, request: Request) -> bool:
        """Whether the request begins like the last covered request. It is then covered too, so
        matching it can be skipped; thousands may wait for one prefix."""
        if self._last_head is None or request.scores_prompt:
            return False
        namespace, head = self._last_head
        return (
            len(request.key) > len(head)
            and request.key.startswith(head)
            and request.namespace == namespace
        )

    def _part(self, request: Request, cached_pages: int) -> _Part:
        first = cached_pages * self._page_size
        key = request.key[first * TOKEN_BYTES : (first + self._more_tokens) * TOKEN_BYTES]
        return request.namespace, cached_pages, key


class Locking:
    """Forecast of how many pages stop being evictable when some matches are locked in turn. Does
    not change the tree."""

    def __init__(self) -> None:
        self._pages: dict[Node, int] = {}

    def cost(self, match: Match) -> int:
        """Pages that locking `match` would take from the evictable ones, beyond those of matches
        added before."""
        return sum(
            max(0, pages - self._pages.get(node, 0))
            for node, pages in _pages_by_node(match)
            if not node.locks
        )

    def add(self, match: Match) -> None:
        for node, pages in _pages_by_node(match):
            self._pages[node] = max(pages, self._pages.get(node, 0))


class Unlocking:
    """Forecast of how many pages become evictable when some locks are released in turn. Pages of
    `kept` are not counted, because another request will lock them."""

    def __init__(self, kept: Match | None = None) -> None:
        self._returned: Counter[Node] = Counter()
        self._kept = dict(_pages_by_node(kept)) if kept else {}

    def add(self, lock: Lock) -> int:
        """Pages that releasing `lock`, too, makes evictable."""
        pages, node = 0, lock.node
        while node.parent is not None:
            self._returned[node] += 1
            if self._returned[node] == node.locks:
                pages += len(node.page_ids) - self._kept.get(node, 0)
            node = node.parent
        return pages


def _pages_by_node(match: Match) -> Iterable[tuple[Node, int]]:
    for node in match.path[:-1]:
        yield node, len(node.page_ids)
    if match.path:
        yield match.path[-1], match.last_pages
