"""Which engine gets the next request: a pure function of the engines' states, the request, and a
random draw.

Power of a few choices: three engines are drawn, and the least loaded one is taken. Taking the least
loaded of all would send every router's requests to the same engine until the next load report,
which is up to a second away.

Affinity: a request may prefer an engine that probably holds the beginning of its prompt. It gets
that engine, unless that is more loaded than the drawn one by more than a margin, or full while the
drawn one is not. Requests with the same affinity key prefer the same engine. The key is a hash of
the raw JSON: nothing is tokenised, and of a long body only the beginning is read. Every router that
knows the same engines prefers the same one, and an engine that comes or goes moves only its own
keys (rendezvous hashing).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, Literal, NamedTuple

import msgspec
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import KvFingerprint, differences

from sluice_router.engines import FULL, Average, EngineState, average_load, condition, load_of

MIN_BYTES: Final = 1024
"""A shorter prompt, some 250 tokens, is computed sooner than it is worth a preference."""
TEXT_BYTES: Final = 1024
"""Bytes of a completion's prompt that are hashed."""
MESSAGE_BYTES: Final = 4096
"""Bytes of each message that are hashed."""
MAX_MESSAGES: Final = 16
"""Messages that are hashed, where the first of a user comes later."""
MAX_PARSED_BYTES: Final = 256 * 1024
"""Longest body that is parsed, which takes 4 µs a KiB. Of a longer one the bytes after `messages`,
`prompt` or `input` are hashed as they are."""
_PROMPT_FIELDS: Final = re.compile(rb'"(messages|prompt|input)"\s*:')
Reason = Literal[
    "LessLoaded",
    "SamePrefix",
    "SameSession",
    "NoEngines",
    "NoneReady",
    "AllDraining",
    "AllFailing",
    "AllTried",
    "NoneMatches",
    "NoneGoesOn",
]
AffinityReason = Literal["SamePrefix", "SameSession"]


class Affinity(NamedTuple):
    """A preference of one engine."""

    key: bytes
    reason: AffinityReason
    margin: float
    """How much more loaded than another the preferred engine may be."""


MARGINS: Final[dict[AffinityReason, float]] = {"SamePrefix": 0.25, "SameSession": 1.0}
"""Margins in units of load: a quarter of what an engine runs at once, or a quarter of a second of
prompts in its queue, for a prefix that may be cached; a whole one for a session that the client
names."""


class Draw(NamedTuple):
    """Random numbers in [0, 1), one for each engine that is drawn."""

    first: float
    second: float
    third: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The engine to ask, or why there is none."""

    engine: EngineState | None
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class PairChoice:
    """The engines for prefill and for decode, or why there is no such pair."""

    prefill: EngineState | None
    decode: EngineState | None
    reason: Reason
    message: str


def pick(
    engines: Sequence[EngineState],
    now: float,
    draw: Draw,
    *,
    stale_seconds: float,
    role: Role = Role.MIXED,
    tried: Collection[str] = (),
    affinity: Affinity | None = None,
) -> Choice:
    """An engine of that role which takes new requests and is not among the keys in `tried`."""
    of_role = _of_role(engines, role)
    ready = [engine for engine in of_role if condition(engine, now) == "ready"]
    candidates = [engine for engine in ready if engine.key not in tried]
    if not candidates:
        return _no_choice(of_role, ready, now)
    average = average_load(ready, now, stale_seconds)
    return _preferred(candidates, average, now, draw, affinity)


def pick_pair(
    engines: Sequence[EngineState],
    now: float,
    draws: tuple[Draw, Draw],
    *,
    stale_seconds: float,
    tried: Collection[str] = (),
    affinity: Affinity | None = None,
) -> PairChoice:
    """A prefill and a decode engine with equal KV fingerprints and one version of the hand-over,
    both picked as `pick` does; the affinity is for the prefill engine, which has computed the
    prefix.

    An engine whose fingerprint is not known yet gets no request, nor does a prefill engine that has
    not reported where decode engines connect.
    """
    pools = _pools_of_pairs(engines, now, tried)
    if isinstance(pools, PairChoice):
        return pools
    prefills, decodes = pools
    average = average_load(_of_role(engines, Role.PREFILL), now, stale_seconds)
    prefill_choice = _preferred(prefills, average, now, draws[0], affinity)
    prefill = prefill_choice.engine
    assert prefill is not None
    decodes = [engine for engine in decodes if engine.hands_over == prefill.hands_over]
    average = average_load(_of_role(engines, Role.DECODE), now, stale_seconds)
    decode = _least_loaded(decodes, average, now, draws[1])
    message = f"prefill {prefill_choice.message}; decode {decode.message}"
    return PairChoice(prefill, decode.engine, prefill_choice.reason, message)


def _pools_of_pairs(
    engines: Sequence[EngineState], now: float, tried: Collection[str]
) -> tuple[list[EngineState], list[EngineState]] | PairChoice:
    """Usable prefill engines, each with a decode engine that it can hand over to, and all usable
    decode engines; or why there is no pair."""
    pools = []
    for role in (Role.PREFILL, Role.DECODE):
        of_role = _of_role(engines, role)
        ready = [engine for engine in of_role if condition(engine, now) == "ready"]
        usable = [engine for engine in ready if engine.key not in tried]
        if not usable:
            missing = _no_choice(of_role, ready, now)
            return PairChoice(None, None, missing.reason, f"{role}: {missing.message}")
        pools.append(usable)
    prefills, decodes = pools
    prefills = [engine for engine in prefills if engine.bootstrap_port is not None]
    if not prefills:
        message = f"prefill: engines without a bootstrap port in a load report: {len(pools[0])}"
        return PairChoice(None, None, "NoneReady", message)
    shared = {engine.hands_over for engine in decodes} - {None}
    prefills = [engine for engine in prefills if engine.hands_over in shared]
    if not prefills:
        return PairChoice(None, None, "NoneMatches", _mismatch(pools[0], decodes))
    return prefills, decodes


def _of_role(engines: Sequence[EngineState], role: Role) -> list[EngineState]:
    return [engine for engine in engines if engine.role is role]


def _preferred(
    candidates: Sequence[EngineState],
    average: Average,
    now: float,
    draw: Draw,
    affinity: Affinity | None,
) -> Choice:
    """The preferred engine, unless the one drawn is less loaded by more than the margin, or it is
    full and the other is not."""
    drawn = _least_loaded(candidates, average, now, draw)
    if affinity is None or drawn.engine is None:
        return drawn
    engine = preferred(affinity, candidates)
    load, other = load_of(engine, now, average), load_of(drawn.engine, now, average)
    name = engine.endpoint.name
    if load > other + affinity.margin or load >= FULL > other:
        return replace(drawn, message=f"{drawn.message}, not {name}: {affinity.reason}, {load:.2f}")
    message = f"{name}: {affinity.reason}, load {load:.2f}, {other:.2f} elsewhere"
    return Choice(engine, affinity.reason, message)


def _least_loaded(
    candidates: Sequence[EngineState], average: Average, now: float, draw: Draw
) -> Choice:
    """The least loaded of those drawn; of equal ones that which was picked longest ago."""

    def order(engine: EngineState) -> tuple[float, float, str]:
        return load_of(engine, now, average), engine.picked_seconds, engine.key

    drawn = _drawn(sorted(candidates, key=lambda engine: engine.key), draw)
    chosen = min(drawn, key=order)
    load = order(chosen)[0]
    drawn_from = f"the least loaded of {len(drawn)} drawn from {len(candidates)}"
    return Choice(chosen, "LessLoaded", f"{chosen.endpoint.name}: load {load:.2f}, {drawn_from}")


def _drawn(engines: Sequence[EngineState], draw: Draw) -> list[EngineState]:
    """Different ones, each set as likely as any other; all of them when they are fewer."""
    left = list(engines)
    return [left.pop(int(number * len(left))) for number in draw if left]


def _mismatch(prefills: Sequence[EngineState], decodes: Sequence[EngineState]) -> str:
    """Differences between the first prefill and decode engine with a fingerprint."""
    first, second = _first_known(prefills), _first_known(decodes)
    if first is None or second is None:
        return "no KV fingerprint known yet of prefill or of decode engines"
    if differing := differences(first[0], second[0]):
        return f"no prefill and decode engine have equal KV fingerprints: {'; '.join(differing)}"
    versions = f"{first[1]} and {second[1]}"
    return f"no prefill and decode engine have one version of the hand-over: {versions}"


def _first_known(engines: Sequence[EngineState]) -> tuple[KvFingerprint, int | None] | None:
    for engine in engines:
        if engine.received is not None and engine.fingerprint is not None:
            return engine.fingerprint, engine.received.report.handover_version
    return None


def _no_choice(engines: Sequence[EngineState], ready: Sequence[EngineState], now: float) -> Choice:
    if ready:
        return Choice(None, "AllTried", f"usable engines, all tried: {len(ready)}")
    if not engines:
        return Choice(None, "NoEngines", "the service has no engines")
    conditions = [condition(engine, now) for engine in engines]
    if failing := conditions.count("failing"):
        return Choice(None, "AllFailing", f"engines that failed just now: {failing}")
    if unready := conditions.count("unready"):
        return Choice(None, "NoneReady", f"engines not ready yet: {unready}")
    return Choice(None, "AllDraining", f"engines draining: {len(conditions)}")


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
    """Affinity of a session by its key, else of a long prompt; None where there is neither. Tenants
    share no cached prefix, so each has preferences of its own."""
    if routing_key:
        return _affinity("SameSession", [tenant.encode(), routing_key.encode()])
    if len(body) > MAX_PARSED_BYTES:
        begin = _PROMPT_FIELDS.search(body, 0, MESSAGE_BYTES)
        start = begin.end() if begin else 0
        return _affinity("SamePrefix", [tenant.encode(), body[start : start + MESSAGE_BYTES]])
    try:
        fields = _body.decode(body)
        pieces = [
            tenant.encode(),
            bytes(fields.cache_salt),
            bytes(fields.model),
            *_beginning(fields),
        ]
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None  # the engine answers what is wrong with it
    return _affinity("SamePrefix", pieces) if len(pieces) > 3 else None


def preferred(affinity: Affinity, engines: Iterable[EngineState]) -> EngineState:
    """The one of the engines, at least one, that requests with this key go to."""

    def score(engine: EngineState) -> bytes:
        return blake2b(engine.key.encode(), key=affinity.key, digest_size=8).digest()

    return max(engines, key=score)


def _beginning(body: _Body) -> Iterator[bytes]:
    """Bytes of a conversation up to the first message of its user. All its turns have equal bytes,
    and other conversations with an equal system prompt have different ones."""
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
    for message in first_messages(turns)[0]:
        yield message[:MESSAGE_BYTES]


def first_messages(turns: bytes) -> tuple[list[bytes], bool]:
    """The messages of a conversation up to the first one of its user, at most `MAX_MESSAGES`, and
    whether the user's is among them.

    Raises:
        msgspec.DecodeError: they are none; RecursionError and UnicodeDecodeError likewise.
    """
    pieces = list[bytes]()
    for message in _messages.decode(turns)[:MAX_MESSAGES]:
        pieces.append(bytes(message))
        if _message.decode(message).role == "user":
            return pieces, True
    return pieces, False


def opening_of(body: bytes) -> list[bytes]:
    """What tells a chat from others: its messages up to the first one of its user; of a body longer
    than `MAX_PARSED_BYTES` so many bytes after `messages` or `input`. Empty for a body without."""
    if len(body) > MAX_PARSED_BYTES:
        begin = _PROMPT_FIELDS.search(body, 0, MESSAGE_BYTES)
        if begin is None or begin[1] == b"prompt":
            return []
        return [body[begin.end() : begin.end() + MAX_PARSED_BYTES]]
    try:
        fields = _body.decode(body)
        messages, has_user = first_messages(bytes(fields.messages or fields.input))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return []  # no chat, or the engine answers what is wrong with it
    return messages if has_user else []


def _affinity(reason: AffinityReason, pieces: Iterable[bytes]) -> Affinity:
    digest = blake2b(digest_size=16)
    for piece in pieces:
        digest.update(len(piece).to_bytes(4, "little") + piece)
    return Affinity(digest.digest(), reason, MARGINS[reason])
