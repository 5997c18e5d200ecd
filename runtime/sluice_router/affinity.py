"""Which engine probably holds the beginning of a prompt: a hint for the pick, and never more.

Requests with the same key prefer the same engine. The key is a hash of the raw JSON: nothing is
tokenised, and of a long body only the beginning is looked at. Every router that knows the same
engines prefers the same one, and an engine that comes or goes takes only its own keys along
(rendezvous hashing). Knows no load.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

import msgspec

from sluice_router.engines import EngineState

MIN_BYTES: Final = 1024
"""A shorter prompt, some 250 tokens, is computed sooner than it is worth a preference."""
TEXT_BYTES: Final = 1024
"""Of a completion's prompt that are hashed."""
MESSAGE_BYTES: Final = 4096
"""Of each message that are hashed."""
MAX_MESSAGES: Final = 16
"""Messages that are hashed, where the first of a user comes later."""

MAX_PARSED_BYTES: Final = 256 * 1024
"""Of a longer body the bytes behind `messages`, `prompt` or `input` are hashed as they are: parsing
takes 4 µs a KiB."""
_PROMPT_FIELDS: Final = re.compile(rb'"(?:messages|prompt|input)"\s*:')

AffinityReason = Literal["SamePrefix", "SameSession"]


class Affinity(NamedTuple):
    """A preference of one engine."""

    key: bytes
    reason: AffinityReason
    margin: float
    """How much more loaded than another the preferred engine may be."""


MARGINS: Final[dict[AffinityReason, float]] = {"SamePrefix": 0.25, "SameSession": 1.0}
"""In units of load: a quarter of what an engine runs at once, or a quarter of a second of prompts
in its queue, for a prefix that may be cached; a whole one for a session that was asked for."""


class _Body(msgspec.Struct):
    prompt: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    cache_salt: msgspec.Raw = msgspec.Raw()
    model: msgspec.Raw = msgspec.Raw()
    """Adapters share nothing that is cached."""


class _Message(msgspec.Struct):
    role: str = ""


_body: Final = msgspec.json.Decoder(_Body)
_messages: Final = msgspec.json.Decoder(list[msgspec.Raw])
_message: Final = msgspec.json.Decoder(_Message)


def affinity_of(routing_key: str | None, body: bytes, tenant: str = "") -> Affinity | None:
    """Of a session by its key, else of a long prompt; None where there is neither. Tenants share
    nothing that is cached, so each has preferences of its own."""
    if routing_key:
        return _affinity("SameSession", [tenant.encode(), routing_key.encode()])
    if len(body) > MAX_PARSED_BYTES:
        begin = _PROMPT_FIELDS.search(body, 0, MESSAGE_BYTES)
        start = begin.end() if begin else 0
        return _affinity("SamePrefix", [tenant.encode(), body[start : start + MESSAGE_BYTES]])
    try:
        found = _body.decode(body)
        pieces = [
            tenant.encode(),
            bytes(found.cache_salt),
            bytes(found.model),
            *_beginning(found),
        ]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None  # the engine says what is wrong with it
    return _affinity("SamePrefix", pieces) if len(pieces) > 3 else None


def preferred(affinity: Affinity, engines: Iterable[EngineState]) -> EngineState:
    """Which of the engines, at least one, requests with this key go to."""

    def score(engine: EngineState) -> bytes:
        return blake2b(engine.key.encode(), key=affinity.key, digest_size=8).digest()

    return max(engines, key=score)


def _beginning(body: _Body) -> Iterator[bytes]:
    """Of a conversation up to the first message of its user, so that all its turns have the same
    and others with the same system prompt have another."""
    instructions, text, turns = map(bytes, (body.instructions, body.prompt, body.messages))
    if bytes(body.input).startswith(b"["):
        turns = bytes(body.input)
    elif body.input:
        text = bytes(body.input)
    if len(instructions) + len(text or turns) < MIN_BYTES:
        return
    if instructions:
        yield instructions[:MESSAGE_BYTES]
    if text:
        yield text[:TEXT_BYTES]
        return
    for message in _messages.decode(turns)[:MAX_MESSAGES]:
        yield bytes(message)[:MESSAGE_BYTES]
        if _message.decode(message).role == "user":
            return


def _affinity(reason: AffinityReason, pieces: Iterable[bytes]) -> Affinity:
    digest = blake2b(digest_size=16)
    for piece in pieces:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return Affinity(digest.digest(), reason, MARGINS[reason])
