"""The hello of a control connection: each side proves that it has the service's key, is the engine
in the epoch that is meant, and has pages that the other can use.

Pure: clock and nonce are values. Knows no socket.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import msgspec
from pydantic import ValidationError
from sluice_contract.config.kv_transfer import KvFingerprint, differences
from sluice_contract.wire.handover import Keys, is_signed, signature

from sluice_runtime.handover.framing import decode
from sluice_runtime.handover.messages import HANDOVER_VERSION, Hello, Refused, Welcome
from sluice_runtime.handover.ports import PeerMemory

GREETING_SECONDS: Final = 60.0
"""How long a hello is valid; clocks of nodes must differ by less."""
_HELLO_LABEL: Final = b"sluice hand-over hello 1\0"
_WELCOME_LABEL: Final = b"sluice hand-over welcome 1\0"
_encoder = msgspec.msgpack.Encoder(order="deterministic")
_hello_decoder = msgspec.msgpack.Decoder(Hello)


class _AnyHello(msgspec.Struct, frozen=True, tag="Hello"):
    """Fields of a `Hello` of every version."""

    version: int


_any_hello_decoder = msgspec.msgpack.Decoder(_AnyHello)


class GreetingError(Exception):
    """The answer to our `Hello` is a refusal, or not acceptable."""


@dataclass(frozen=True, slots=True)
class DecodeIdentity:
    """Identity of a decode engine, and what it requires of a prefill engine."""

    keys: Keys = field(repr=False)
    """Keys of the service."""
    epoch: str
    name: str
    fingerprint: KvFingerprint
    backend: str
    """Name of the transfer backend."""
    page_bytes: int


@dataclass(frozen=True, slots=True)
class PrefillIdentity:
    """Identity of a prefill engine."""

    keys: Keys = field(repr=False)
    """Keys of the service."""
    epoch: str
    fingerprint: KvFingerprint
    backend: str
    """Name of the transfer backend."""
    memory: PeerMemory


class SeenNonces:
    """Nonces of accepted hellos, kept as long as a copy of the hello would still be valid."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()

    def add(self, nonce: str, now_unix: float) -> bool:
        """Adds a nonce; returns whether it is new."""
        while self._seen and next(iter(self._seen.values())) < now_unix - 2 * GREETING_SECONDS:
            self._seen.popitem(last=False)
        if nonce in self._seen:
            return False
        self._seen[nonce] = now_unix
        return True


def make_hello(us: DecodeIdentity, prefill_epoch: str, now_unix: float, nonce: str) -> Hello:
    """The first message of a decode engine, signed."""
    hello = Hello(
        version=HANDOVER_VERSION,
        epoch=us.epoch,
        name=us.name,
        prefill_epoch=prefill_epoch,
        fingerprint=us.fingerprint.to_json_dict(),
        unix_seconds=now_unix,
        nonce=nonce,
        signature="",
    )
    return msgspec.structs.replace(hello, signature=signature(us.keys()[0], _hello_message(hello)))


def read_hello(payload: bytes) -> Hello | Refused:
    """The first message of a connection, or the refusal to send if it has another version.

    Raises:
        FramingError: the payload is not a `Hello` of any version.
    """
    version = decode(_any_hello_decoder, payload).version
    if version != HANDOVER_VERSION:
        return Refused(
            "OtherVersion",
            f"version of the hand-over: {version}; this prefill engine has {HANDOVER_VERSION}",
        )
    return decode(_hello_decoder, payload)


def refusal_of(us: PrefillIdentity, hello: Hello, now_unix: float) -> Refused | None:
    """Why a hello is refused; None if it is accepted. A peer without the key learns nothing about
    this engine."""
    if not is_signed(us.keys(), _hello_message(hello), hello.signature):
        return Refused("NotSigned", "the greeting is not signed with this service's key")
    age_seconds = now_unix - hello.unix_seconds
    if not abs(age_seconds) <= GREETING_SECONDS:  # also for NaN
        return Refused(
            "OutOfDate",
            f"the greeting is {age_seconds:.0f} s old by this engine's clock; "
            f"allowed: at most {GREETING_SECONDS:.0f} s, either way",
        )
    if hello.prefill_epoch != us.epoch:
        return Refused(
            "OtherEpoch", f"epoch {hello.prefill_epoch} is meant; this engine's is {us.epoch}"
        )
    return _fingerprint_refusal(us.fingerprint, hello.fingerprint)


def make_welcome(us: PrefillIdentity, hello: Hello) -> Welcome:
    """The signed answer to an accepted hello; the signature covers the hello's nonce."""
    welcome = Welcome(
        epoch=us.epoch,
        session=us.memory.session,
        backend=us.backend,
        pool_address=us.memory.pool_address,
        page_bytes=us.memory.page_bytes,
        pages=us.memory.pages,
        staged=us.memory.staged,
        signature="",
        parts=us.memory.parts,
    )
    signed = signature(us.keys()[0], _welcome_message(welcome, hello.nonce))
    return msgspec.structs.replace(welcome, signature=signed)


def memory_of(us: DecodeIdentity, hello: Hello, answer: Welcome | Refused) -> PeerMemory:
    """Location of the pages of the engine that answered `hello`.

    Raises:
        GreetingError: the engine refused, or its answer has no valid signature, or its pages do not
            fit ours.
    """
    if isinstance(answer, Refused):
        raise GreetingError(f"refused the greeting: {answer.reason}: {answer.error}")
    if not is_signed(us.keys(), _welcome_message(answer, hello.nonce), answer.signature):
        raise GreetingError("its answer to the greeting is not signed with this service's key")
    if answer.epoch != hello.prefill_epoch:
        raise GreetingError(f"epoch {hello.prefill_epoch} is meant; it answers as {answer.epoch}")
    if answer.backend != us.backend:
        raise GreetingError(f"transfer backend: {answer.backend}; this engine's is {us.backend}")
    if answer.page_bytes != us.page_bytes:
        raise GreetingError(
            f"bytes of a page: {answer.page_bytes}; this engine's have {us.page_bytes}"
        )
    return PeerMemory(
        answer.session,
        answer.pool_address,
        answer.page_bytes,
        answer.pages,
        answer.staged,
        answer.parts,
    )


def _fingerprint_refusal(
    ours: KvFingerprint, theirs: dict[str, str | int | None]
) -> Refused | None:
    try:
        found = differences(ours, KvFingerprint.model_validate(theirs))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        found = (f"{where}: {first['msg']}",)
    if not found:
        return None
    return Refused(
        "FingerprintsDiffer",
        f"pages of this prefill engine and of the decode engine differ: {'; '.join(found)}",
    )


def _hello_message(hello: Hello) -> bytes:
    """Bytes of a `Hello` that are signed."""
    unsigned = msgspec.structs.replace(hello, signature="")
    return _HELLO_LABEL + _encoder.encode(unsigned)


def _welcome_message(welcome: Welcome, nonce: str) -> bytes:
    """Bytes of a `Welcome` that are signed, with the nonce of its `Hello`."""
    unsigned = msgspec.structs.replace(welcome, signature="")
    return _WELCOME_LABEL + _encoder.encode((nonce, unsigned))
