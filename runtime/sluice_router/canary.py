"""Canaries: which requests go to a new revision, and which engines serve them.

A request's key decides, before an engine is drawn: that of its session, of its chat, or its id. All
turns of a chat have one key, and no two chats share one because their prompts begin alike. A key is
hashed with the name of the revision. So a chat stays where it is while the share grows, and each
roll-out begins with other chats.

An engine whose revision is not known yet gets no request: it would be counted to the wrong side.
One that answers without a readable report gets requests where no other engine is usable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b

import msgspec
from sluice_contract.cluster.labels import ALL_REVISIONS, CanaryShare, Role
from sluice_contract.http_heads import REQUEST_ID_HEADER, ROUTING_KEY_HEADER

from sluice_router.attempts import Call
from sluice_router.engines import EngineState

Shares = Mapping[Role, CanaryShare]
"""The share that each pool of the service states."""


def by_revision(
    shares: Shares, engines: Sequence[EngineState]
) -> tuple[list[EngineState], list[EngineState]]:
    """The engines that serve the share of the new revision, and those that serve all other
    requests. Engines of a pool that is not changed are in both."""
    new, former = list[EngineState](), list[EngineState]()
    for engine in engines:
        revision = shares[engine.endpoint.role].revision
        if engine.received is None:
            continue
        is_new = engine.received.report.revision == revision
        if is_new or revision == ALL_REVISIONS:
            new.append(engine)
        if not is_new:
            former.append(engine)
    return new, former


def in_order(
    shares: Shares, engines: Sequence[EngineState], key: bytes | None
) -> list[list[EngineState]]:
    """Groups of engines for the request with this key: the next group is used only if no engine of
    the one before is usable. None: the former revision goes first, as for every retry."""
    new, former = by_revision(shares, engines)
    unknown = [engine for engine in engines if engine.received is None and engine.unreadable]
    is_new = key is not None and goes_to_new(shares, key)
    groups = (new, former, unknown) if is_new else (former, new, unknown)
    return [group for group in groups if group]


def goes_to_new(shares: Shares, key: bytes) -> bool:
    """Whether requests with this key are in the share. Where pools state different shares, the
    smallest counts."""
    salt = ".".join(shares[role].revision for role in sorted(shares))
    digest = blake2b(key, key=blake2b(salt.encode()).digest(), digest_size=8).digest()
    percent = min(share.percent for share in shares.values())
    return int.from_bytes(digest, "big") * 100 < percent << 64


def key_of(call: Call) -> bytes:
    """The key of a request: its session's or its chat's, within its tenant, else its id's."""
    tenant = (call.tenant or "").encode()
    if session := call.headers.get(ROUTING_KEY_HEADER):
        return _digest((b"session", tenant, session.encode()))
    if call.body is not None and (opening := list(_opening(call.body.content))):
        return _digest((b"chat", tenant, *opening))
    return _digest((b"request", call.headers[REQUEST_ID_HEADER].encode()))


class _Body(msgspec.Struct):
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


class _Message(msgspec.Struct):
    role: str = ""


_body = msgspec.json.Decoder(_Body)
_messages = msgspec.json.Decoder(list[msgspec.Raw])
_message = msgspec.json.Decoder(_Message)


def _opening(body: bytes) -> Iterator[bytes]:
    """The messages of a chat up to the first one of its user; nothing if the body has none."""
    try:
        fields = _body.decode(body)
        messages = _messages.decode(fields.messages or fields.input)
        roles = [_message.decode(message).role for message in messages]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return  # no chat, or the engine answers what is wrong with it
    if "user" in roles:
        yield from map(bytes, messages[: roles.index("user") + 1])


def _digest(pieces: Iterable[bytes]) -> bytes:
    digest = blake2b(digest_size=16)
    for piece in pieces:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return digest.digest()
