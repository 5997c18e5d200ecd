"""Chooses waiting requests to hand to another engine that has room for them. Pure.

A request that has begun stays: it holds pages, or its client has seen a part of the answer. Another
request stays if waiting costs less time than computing elsewhere what is cached here. Its expected
wait is the time for the prompts ahead of it, or as long again as it has waited if that is more:
waits for pages or a row cannot be predicted otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from sluice_runtime.scheduler.kv_allocator import KvAllocator
from sluice_runtime.scheduler.request import Phase, Request
from sluice_runtime.scheduler.request_table import RequestTable

HANDED_BACK: Final = "the engine has not begun it, and another engine has room"


class Costs(NamedTuple):
    """Cost of computing prompts."""

    token_seconds: float
    """Seconds per prompt token; 0: unknown."""
    page_size: int


def leaving(
    groups: Iterable[Sequence[str]],
    most: int,
    table: RequestTable,
    kv: KvAllocator,
    costs: Costs,
    now: float,
) -> list[list[Request]]:
    """The first `most` groups whose requests may all leave, in the order of `groups`. A group is
    the ids of all choices of one client's request."""
    asked = [requests for ids in groups if (requests := _not_begun(ids, table))]
    ahead = _tokens_ahead(table)
    chosen: list[list[Request]] = []
    for requests in asked:
        if len(chosen) >= most:
            break
        if all(_is_cheaper_elsewhere(r, ahead, kv, costs, now) for r in requests):
            chosen.append(requests)
    return chosen


def _not_begun(ids: Sequence[str], table: RequestTable) -> list[Request]:
    """The requests with these ids; empty if any of them has begun or ended."""
    requests = [request for id_ in ids if (request := table.get(id_))]
    may_leave = len(requests) == len(ids) and all(map(_has_not_begun, requests))
    return requests if may_leave else []


def _has_not_begun(request: Request) -> bool:
    waits = request.phase in (Phase.WAITING, Phase.AWAITING_PAGES)
    return waits and not request.output_tokens and not request.aborting


def _tokens_ahead(table: RequestTable) -> Mapping[str, int]:
    """Tokens of the prompts that came before each waiting request."""
    ahead, total = {}, table.prefilling.uncomputed_tokens if table.prefilling else 0
    for request in table.waiting:
        ahead[request.request_id] = total
        total += request.uncomputed_tokens
    return ahead


def _is_cheaper_elsewhere(
    request: Request,
    ahead: Mapping[str, int],
    kv: KvAllocator,
    costs: Costs,
    now: float,
) -> bool:
    """Whether the request is expected to wait longer than its cached tokens save. A request that
    awaits pages saves nothing, because another engine computes its prompt anyway."""
    if request.phase is Phase.AWAITING_PAGES:
        return True
    queued_seconds = ahead[request.request_id] * costs.token_seconds
    wait_seconds = max(queued_seconds, now - request.waiting_since_seconds)
    return wait_seconds > _saved_pages(request, kv) * costs.page_size * costs.token_seconds


def _saved_pages(request: Request, kv: KvAllocator) -> int:
    """Number of leading pages that are cached here, including the host tier."""
    match = kv.match(request)
    return match.pages + (kv.host.returning(request, match) if kv.host else 0)
