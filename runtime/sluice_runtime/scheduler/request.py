"""A request as the scheduler sees it: its tokens, how many are computed, and what it holds.

Knows neither the queue nor the pool. Only this package changes requests: `RequestTable` changes the
phase, `KvAllocator` what a request holds.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sluice_runtime.scheduler.batch import NO_TOKEN, RowAdded, SampledRow
from sluice_runtime.scheduler.prefix_cache import Lock
from sluice_runtime.scheduler.prefix_node import TOKEN_BYTES, Tail, key_of
from sluice_runtime.wire.messages import FinishReason, Generate, Sampling, TokenDelta

Fence = Hashable
"""One use of pages that may outlive their owner: a step in flight, or a transfer."""


class Phase(Enum):
    """Phase of a request; `TRANSITIONS` lists the moves between phases."""

    WAITING = "waiting"
    AWAITING_PAGES = "awaiting pages"
    """Waits for a row and pages; its prompt is computed elsewhere."""
    PREALLOCATED = "preallocated"
    """Has a row and pages, into which another engine writes its prompt."""
    PREFILLING = "prefilling"
    RUNNING = "running"
    ENDED = "ended"


TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.WAITING: frozenset({Phase.PREFILLING, Phase.RUNNING, Phase.ENDED}),
    Phase.AWAITING_PAGES: frozenset({Phase.PREALLOCATED, Phase.ENDED}),
    Phase.PREALLOCATED: frozenset({Phase.RUNNING, Phase.ENDED}),
    Phase.PREFILLING: frozenset({Phase.PREFILLING, Phase.RUNNING, Phase.WAITING, Phase.ENDED}),
    Phase.RUNNING: frozenset({Phase.WAITING, Phase.ENDED}),
    Phase.ENDED: frozenset(),
}
"""Moves between phases, all made by `RequestTable`. A move back to WAITING is a retraction."""


@dataclass(slots=True, eq=False)
class Request:
    """A request from its arrival to its terminal event."""

    # The request as it came.
    request_id: str
    token_ids: list[int]
    """Prompt, then every token generated so far. After a retraction all of it is prefilled."""
    prompt_tokens: int
    max_tokens: int
    sampling: Sampling
    stop_token_ids: frozenset[int]
    ignore_eos: bool
    arrival_seconds: float
    priority: int = 0
    routing_key: str = ""
    tenant: str = ""
    adapter: str = ""
    """Key of the request's adapter, as in `Generate`; empty: none."""
    adapter_folder: str = ""
    """Folder of the adapter's files."""
    namespace: tuple[str, ...] = ("",)
    """Requests share cached prefixes within one namespace only."""
    has_grammar: bool = False
    logprobs: int = -1
    prompt_logprobs: int = -1
    """Number of most probable tokens to report with each prompt token, as in `Generate`; -1 once
    they were returned."""

    # Its phase, and since when.
    phase: Phase = Phase.WAITING
    aborting: bool = False
    preempted: bool = False
    """Whether the request was preempted by a more urgent one, which happens at most once."""
    waiting_since_seconds: float = 0.0
    """Time at which it joined the queue: its arrival at this engine, or its last retraction."""
    started_seconds: float | None = None
    """Time at which its first step was scheduled."""

    # Its progress.
    key: bytes = b""
    """Token ids as the prefix tree compares them, as of the last time that it waited."""
    digests_from: int = 0
    """Page with the first of `digests`."""
    digests: list[bytes] = field(default_factory=list)
    """Digests for the host tier of those pages, from `digests_from` on, for which they were
    needed."""
    computed_tokens: int = 0
    """Leading tokens whose keys and values are in the pool, or will be after the last batch."""
    draft_computed_tokens: int = 0
    """Leading tokens that the draft model has computed, too; at most `computed_tokens`."""
    prefilled_tokens: int = 0
    """Leading tokens that were cached when it left the queue, or that finished batches have
    computed since; tokens that it generates afterwards are not counted."""
    cached_tokens: int = 0
    """Prompt tokens that were cached when it first started."""
    lead_tokens: int = 0
    """Tokens that a cut prompt got in its steps, less those that other prompts got."""

    # What it holds: `KvAllocator` takes it and gives it back.
    row: int | None = None
    row_announced: bool = False
    """Whether a batch has told the runner of its row."""
    page_ids: list[int] = field(default_factory=list)
    """Cached pages first, `lock.pages` of them, then its own."""
    reserved_pages: int = 0
    """Pages for the rest of its prompt that are kept for it and not taken yet."""
    lock: Lock | None = None
    """Lock that keeps the cached pages in the tree."""
    transfers: set[Fence] = field(default_factory=set)
    """Transfers that may use the request's pages; some may have ended."""

    # Derived values.
    max_total_tokens: int = field(init=False)
    """Length in tokens of prompt and longest answer."""
    queued_tokens: int = field(init=False)
    """Length of `token_ids` when it last left the queue; while it waits, the present length."""
    special_tokens: frozenset[int] = field(init=False)
    """Tokens that need other work than being appended when they are drawn."""
    fast_path_until_tokens: int = field(init=False)
    """Length of `token_ids` below which a drawn token that is not special is simply appended. 0 if
    the request has ended or is being aborted, since then no token is."""

    def __post_init__(self) -> None:
        self.max_total_tokens = self.prompt_tokens + self.max_tokens
        self.queued_tokens = len(self.token_ids)
        self.special_tokens = self.stop_token_ids | {NO_TOKEN}
        self.fast_path_until_tokens = self.max_total_tokens - 1

    def key_of(self, first: int, last: int) -> bytes:
        """Tokens [first, last) as the prefix tree compares them."""
        packed = len(self.key) // TOKEN_BYTES
        key = self.key[first * TOKEN_BYTES : last * TOKEN_BYTES]
        return key if last <= packed else key + key_of(self.token_ids[max(first, packed) : last])

    def packed_key(self, first: int, last: int, least: int) -> tuple[bytes, Tail | None]:
        """Tokens [first, last), of which those that are packed already, and at least the first
        `least`, come as the prefix tree compares them."""
        packed = max(len(self.key) // TOKEN_BYTES, first + least)
        if last <= packed:
            return self.key_of(first, last), None
        return self.key_of(first, packed), Tail(self.token_ids, packed, last)

    @property
    def turn_key(self) -> tuple[str, str]:
        """Tenant and routing key. Clients choose the routing key, so it counts only within its
        tenant."""
        return self.tenant, self.routing_key

    @property
    def ended(self) -> bool:
        return self.phase is Phase.ENDED

    @property
    def scores_prompt(self) -> bool:
        """Whether all of its prompt must be computed, in steps without decode rows."""
        return self.prompt_logprobs >= 0

    def matchable_pages(self, page_size: int) -> int:
        """Number of whole pages that may come from a cache: those of all tokens except the last,
        and none if the prompt must be scored."""
        return 0 if self.scores_prompt else (len(self.token_ids) - 1) // page_size

    @property
    def landed_tokens(self) -> int:
        """Number of leading tokens that are known, and computed by batches whose results have
        arrived. In a decoding request that is all except the last; while it is aborted there may be
        one more."""
        known = len(self.token_ids)
        return known - 1 if known > self.queued_tokens else self.prefilled_tokens

    @property
    def output_tokens(self) -> int:
        return len(self.token_ids) - self.prompt_tokens

    @property
    def remaining_tokens(self) -> int:
        """Number of tokens that the request may still generate, not counting one that a batch in
        flight samples."""
        known, scheduled = len(self.token_ids), self.computed_tokens + 1
        return self.max_total_tokens - (known if known > scheduled else scheduled)

    @property
    def uncomputed_tokens(self) -> int:
        """Tokens to prefill before the next one can be sampled."""
        return len(self.token_ids) - self.computed_tokens


def request_from(message: Generate, max_tokens: int, adapter_folder: str = "") -> Request:
    """A waiting request; `max_tokens` is the message's, clamped to what can be served."""
    token_ids = list(message.token_ids)
    token_ids.append(NO_TOKEN)  # the list gets its spare room here, not in the step that answers
    token_ids.pop()
    return Request(
        request_id=message.request_id,
        token_ids=token_ids,
        prompt_tokens=len(message.prompt_ids),
        max_tokens=max_tokens,
        sampling=message.sampling,
        stop_token_ids=frozenset(message.stop_token_ids),
        ignore_eos=message.ignore_eos,
        arrival_seconds=message.arrival_seconds,
        priority=message.priority,
        routing_key=message.routing_key,
        tenant=message.tenant,
        waiting_since_seconds=message.arrival_seconds + message.waited_seconds,
        adapter=message.adapter,
        adapter_folder=adapter_folder,
        has_grammar=message.grammar is not None,
        namespace=(message.cache_salt, message.adapter),
        key=key_of(message.token_ids),
        logprobs=message.logprobs,
        prompt_logprobs=-1 if message.generated_ids else message.prompt_logprobs,
    )


def end_of_resumed(request: Request) -> FinishReason | None:
    """Finish reason of a new request that has ended already within the tokens of another engine;
    else None."""
    if not request.output_tokens:
        return None
    if request.token_ids[-1] in request.stop_token_ids:
        return "stop"
    return "length" if len(request.token_ids) >= request.max_total_tokens else None


def outcome_of(
    request: Request,
    sampled: SampledRow | None,
    reason: FinishReason | None = None,
    error: str | None = None,
) -> TokenDelta:
    """The delta for the request's client. The delta with the first token also has the wait for the
    first step and the number of cached prompt tokens. A request for no tokens gets none, even if
    one was drawn."""
    if sampled is None:
        return TokenDelta(request.request_id, (), reason, error)
    token, logprob, prompt_logprobs = sampled
    token_ids = (token,) if request.max_tokens else ()
    logprobs = (logprob,) if logprob and token_ids else ()
    if len(request.token_ids) > request.prompt_tokens + 1:
        return TokenDelta(request.request_id, token_ids, reason, error, logprobs=logprobs)
    assert request.started_seconds is not None, "a token without a step"
    return TokenDelta(
        request.request_id,
        token_ids,
        reason,
        error,
        cached_tokens=request.cached_tokens,
        queue_seconds=request.started_seconds - request.arrival_seconds,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def row_added(request: Request) -> RowAdded:
    """The message to the runner when the request gets its row."""
    sampling = request.sampling
    looks_back = sampling.penalises or request.scores_prompt
    return RowAdded(
        row_of(request),
        request.request_id,
        sampling,
        request.prompt_tokens,
        history=request.key_of(0, len(request.token_ids)) if looks_back else b"",
        stop_token_ids=tuple(sorted(request.stop_token_ids)) if sampling.min_tokens else (),
        logprobs=request.logprobs,
        prompt_logprobs=request.prompt_logprobs,
        computed_tokens=request.computed_tokens if request.phase is Phase.RUNNING else 0,
        last_token=request.token_ids[-1] if request.phase is Phase.RUNNING else NO_TOKEN,
        adapter=request.adapter,
        adapter_folder=request.adapter_folder,
        has_grammar=request.has_grammar,
    )


def row_of(request: Request) -> int:
    """The row of a request that has one."""
    assert request.row is not None, f"{request.request_id} has no row"
    return request.row


def lock_of(request: Request) -> Lock:
    """The lock of a request that has started."""
    assert request.lock is not None, f"{request.request_id} holds nothing"
    return request.lock


def rows_needing_page(requests: Iterable[Request], page_size: int) -> list[Request]:
    """Requests whose next token begins a page that they do not have yet."""
    return [
        r
        for r in requests
        if not r.computed_tokens % page_size and r.computed_tokens >= len(r.page_ids) * page_size
    ]
