"""Canaries: which requests go to a new revision, and which engines serve them.

A request's key decides, before an engine is drawn: that of its session, of its chat, or its id. All
turns of a chat have one key, and no two chats share one because their prompts begin alike. A key is
hashed with the name of the revision. So a chat stays where it is while the share grows, and each
roll-out begins with other chats.

An engine that was not asked for its revision yet gets no request: it would be counted to the wrong
side. One that was asked and has not reported it, or that is of a third revision, gets requests
where no other engine is usable.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.http_heads import REQUEST_ID_HEADER, ROUTING_KEY_HEADER

from sluice_router.attempts import Call
from sluice_router.engines import EngineState
from sluice_router.pick import opening_of

Shares = Mapping[Role, CanaryShare]
"""The share that each pool of the service states."""


class CanaryKey(NamedTuple):
    """What requests of one session or chat have in common."""

    digest: bytes
    """16 bytes."""
    recurs: bool = True
    """Whether further requests are expected; False: it is of a request's id."""


class BySide(NamedTuple):
    """Engines by what they serve in a canary. Engines of a pool that is not changed serve both the
    share of the new revision and the rest."""

    new: list[EngineState]
    former: list[EngineState]
    last: list[EngineState]
    """Engines that get requests where no other engine is usable."""


def by_side(shares: Shares, engines: Sequence[EngineState]) -> BySide:
    """The engines by side; without those whose side is unknown. In a pool that states no share, the
    only revision is the former one; where there are several, none has a side."""
    sides, unstated = BySide([], [], []), _unstated(shares, engines)
    for engine in engines:
        revision, share = _revision(engine), shares.get(engine.endpoint.role)
        if share is None:
            if unstated == {revision}:
                sides.former.append(engine)
            continue
        if revision == share.revision:
            sides.new.append(engine)
        if revision == share.former:
            sides.former.append(engine)
        if revision not in (share.revision, share.former) and engine.was_asked:
            sides.last.append(engine)
    return sides


def _unstated(shares: Shares, engines: Sequence[EngineState]) -> set[str | None]:
    """Revisions that engines report of pools that state no share."""
    silent = (engine for engine in engines if engine.endpoint.role not in shares)
    return {_revision(engine) for engine in silent} - {None}


def _revision(engine: EngineState) -> str | None:
    """The engine's revision, as it reports it; None: it has not yet."""
    return None if engine.received is None else engine.received.report.revision


def is_of_side(shares: Shares, engine: EngineState, *, new: bool) -> bool:
    """Whether the engine's pool states a share, and the engine reports the revision of that
    side."""
    share = shares.get(engine.endpoint.role)
    if share is None:
        return False
    return _revision(engine) == (share.revision if new else share.former)


def revisions_of(shares: Shares) -> tuple[str, str]:
    """Texts of the new and the former revision: of several pools those of each, in the order of
    their roles, with dots between."""
    ordered = [shares[role] for role in sorted(shares)]
    new = ".".join(share.revision for share in ordered)
    return new, ".".join(share.former for share in ordered)


def in_order(
    shares: Shares, engines: Sequence[EngineState], *, new_first: bool
) -> list[list[EngineState]]:
    """Groups of engines for a request: the next group is used only if no engine of the one before
    is usable. `new_first`: the request is in the share of the new revision."""
    new, former, last = by_side(shares, engines)
    groups = (new, former, last) if new_first else (former, new, last)
    return [group for group in groups if group]


def percent_of(shares: Shares) -> int:
    """Percent of requests for the new revision: where pools state different shares, the smallest
    counts."""
    return min(share.percent for share in shares.values())


def goes_to_new(shares: Shares, key: CanaryKey) -> bool:
    """Whether requests with this key are in the share of the new revision."""
    salt, _ = revisions_of(shares)
    digest = blake2b(key.digest, key=blake2b(salt.encode()).digest(), digest_size=8).digest()
    return int.from_bytes(digest, "big") * 100 < percent_of(shares) << 64


def key_of(call: Call) -> CanaryKey:
    """The key of a request: its session's or its chat's, within its tenant, else its id's."""
    tenant = (call.tenant or "").encode()
    if session := call.headers.get(ROUTING_KEY_HEADER):
        return CanaryKey(_digest((b"session", tenant, session.encode())))
    if call.body is not None and (opening := opening_of(call.body.content)):
        return CanaryKey(_digest((b"chat", tenant, *opening)))
    digest = _digest((b"request", call.headers[REQUEST_ID_HEADER].encode()))
    return CanaryKey(digest, recurs=False)


def _digest(pieces: Iterable[bytes]) -> bytes:
    digest = blake2b(digest_size=16)
    for piece in pieces:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return digest.digest()
