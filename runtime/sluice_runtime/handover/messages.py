"""Messages between a decode engine and a prefill engine over the control connection.

The decode engine connects, greets, and opens a *room* for each request: a number of 63 random bits
that names the request on both sides until it ends. The prefill engine announces each chunk that is
computed; the decode engine reads the pages itself. msgspec structs with a tag per type; knows no
socket.

    decode                          prefill
      Hello            ──────────▶             once per connection
                       ◀──────────  Welcome
      Bootstrap(room)  ──────────▶             queued, computed in chunks
                       ◀──────────  Chunk      (repeated; decode reads its pages meanwhile)
      ChunkRead(room)  ──────────▶             where chunks are copies: not needed any more
                       ◀──────────  Finished   the first token; pages still held
      Received(room)   ──────────▶             every announced byte was read and verified
                       ◀──────────  Attested   pages were held until now; they are let go
      Cancel(room)     ──────────▶  or  ◀──────────  Failed(room): the end, at any time
"""

from __future__ import annotations

from typing import Final

import msgspec

from sluice_runtime.wire.messages import Generate, Refusal, TokenLogprob

HANDOVER_VERSION: Final = 9
"""Both engines must have the same: fields are added with defaults and this goes up."""


class Message(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all of them."""


class Hello(Message, frozen=True):
    """Decode → prefill, the first message."""

    version: int
    epoch: str
    """Life (epoch) of the decode engine."""
    name: str
    """Name of the decode engine's pod, for messages."""
    prefill_epoch: str
    """Life (epoch) of the prefill engine that is meant; another one refuses."""
    fingerprint: dict[str, str | int | None]
    """`KvFingerprint` as JSON."""
    unix_seconds: float
    nonce: str
    signature: str
    """HMAC with the service's key over all the other fields."""


class Welcome(Message, frozen=True):
    """Prefill → decode: the answer to `Hello`, signed too, so that pages are read from no other
    peer."""

    epoch: str
    session: str
    """Where the transfer backend reads from; bound to this epoch."""
    backend: str
    """Name of the transfer backend; the decode engine's must be the same."""
    pool_address: int
    """Address of page 0; page `n` begins `n * page_bytes` further."""
    page_bytes: int
    pages: int
    staged: bool
    """Whether chunks are announced with copies of their pages, which are used again when
    `ChunkRead` says so."""
    signature: str
    """HMAC over all the other fields and the nonce of the `Hello`."""
    parts: int = 1
    """Parts of each page, one behind the other: one for each rank, with its heads of all layers."""


class Bootstrap(Message, frozen=True):
    """Decode → prefill: compute this prompt and its first token; there are pages for it here."""

    room: int
    request: Generate
    """Request as the decode engine got it; its times and credit mean nothing to the prefill
    engine."""
    held_tokens: int
    """Leading tokens, in whole pages, that the decode engine has cached: not announced to it."""
    prompt_hash: str
    deadline_seconds: float
    """How long the decode engine waits for `Finished`, from now."""


class Chunk(Message, frozen=True):
    """Prefill → decode: keys and values of tokens [start, end) are in these pages."""

    room: int
    start: int
    """First token of the chunk. It follows the previous chunk; or it is the first chunk's again,
    where the prompt is computed a second time."""
    end: int
    page_ids: tuple[int, ...]
    checksum: int
    """xxh3_64 over the bytes of the pages, in this order; the room's number is the seed."""


class Finished(Message, frozen=True):
    """Prefill → decode: every chunk was announced; this is the first token."""

    room: int
    token_id: int
    end: int
    """Tokens of the prompt: the last chunk ends here."""
    prompt_hash: str
    """`PromptHash` of the tokens that were computed, in hexadecimal."""
    cached_tokens: int
    """Prompt tokens that the prefill engine had cached."""
    queue_seconds: float = 0.0
    """Seconds from `Bootstrap` to the first step that computed some of the prompt."""
    logprob: TokenLogprob | None = None
    prompt_logprobs: list[TokenLogprob] | None = None


class ChunkRead(Message, frozen=True):
    """Decode → prefill, where pages are staged: the chunk that ends here was read and is right, and
    more of the prompt is to come. The copies are let go; the pages are held as before."""

    room: int
    end: int


class Received(Message, frozen=True):
    """Decode → prefill: all announced pages were read and their checksums agree."""

    room: int


class Attested(Message, frozen=True):
    """Prefill → decode: the pages were held until `Received` came. The room is closed."""

    room: int


class Failed(Message, frozen=True):
    """Prefill → decode: the room is closed; pages read from now on are not valid."""

    room: int
    error: str
    """One line for the client."""
    refusal: Refusal
    """Kind of the failure: `invalid` is the request's fault, everything else may work elsewhere."""


class Refused(Message, frozen=True):
    """Prefill → decode: the answer to a `Hello` that is not accepted; the connection closes."""

    reason: str
    """Stable CamelCase: NotSigned, OutOfDate, Replayed, OtherEpoch, OtherVersion,
    FingerprintsDiffer, TooManyPeers."""
    error: str


class Cancel(Message, frozen=True):
    """Decode → prefill: the request is cancelled; unknown rooms are ignored."""

    room: int
    error: str = ""
    """Why, for the log."""


class Ping(Message, frozen=True):
    """Either way, when nothing else was sent for a while: the sender's process is alive."""


ToPrefill = Hello | Bootstrap | ChunkRead | Received | Cancel | Ping
ToDecode = Welcome | Refused | Chunk | Finished | Attested | Failed | Ping
