"""Messages between a decode engine and a prefill engine over the control connection.

The decode engine connects, says hello, and opens a *room* for each request: a number of 63 random
bits that names the request on both sides until it ends. The prefill engine announces each computed
chunk; the decode engine reads the pages itself. The messages are msgspec structs with a tag for
each type. Knows no socket.

    decode                          prefill
      Hello            ──────────▶             once per connection
                       ◀──────────  Welcome
      Bootstrap(room)  ──────────▶             queued, computed in chunks
                       ◀──────────  Chunk      (repeated; decode reads its pages meanwhile)
      ChunkRead(room)  ──────────▶             only if chunks are copies: the copy may go
                       ◀──────────  Finished   the first token; pages still held
      Received(room)   ──────────▶             every announced byte was read and verified
                       ◀──────────  Attested   pages were held until now and are released
      Cancel(room)     ──────────▶  or  ◀──────────  Failed(room): the end, at any time
"""

from __future__ import annotations

from typing import Final

import msgspec

from sluice_runtime.wire.messages import Generate, Refusal, TokenLogprob

HANDOVER_VERSION: Final = 9
"""Version that both engines must have. It is raised whenever a field is added, with a default."""


class HandoverMessage(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Base of all messages."""


class Hello(HandoverMessage, frozen=True):
    """Decode → prefill, the first message."""

    version: int
    epoch: str
    """Epoch of the decode engine's process."""
    name: str
    """Name of the decode engine's pod, for messages."""
    prefill_epoch: str
    """Epoch of the prefill engine that is meant; an engine in another epoch refuses."""
    fingerprint: dict[str, str | int | None]
    """`KvFingerprint` as JSON."""
    unix_seconds: float
    nonce: str
    signature: str
    """HMAC with the service's key over all the other fields."""


class Welcome(HandoverMessage, frozen=True):
    """Prefill → decode: the answer to `Hello`, also signed, so that pages are read only from the
    right peer."""

    epoch: str
    session: str
    """Address in the transfer backend's form from which pages are read; valid for this epoch
    only."""
    backend: str
    """Name of the transfer backend; the decode engine's must be the same."""
    pool_address: int
    """Address of page 0; page `n` begins `n * page_bytes` further."""
    page_bytes: int
    pages: int
    staged: bool
    """Whether chunks are announced with copies of their pages; a copy's memory is reused after
    `ChunkRead`."""
    signature: str
    """HMAC over all the other fields and the nonce of the `Hello`."""
    parts: int = 1
    """Parts of each page, one after the other: each rank has one, with its heads of all layers.
    Ranks that hold copies of the same heads have one together."""


class Bootstrap(HandoverMessage, frozen=True):
    """Decode → prefill: compute this prompt and its first token. The decode engine has pages for
    the prompt."""

    room: int
    request: Generate
    """Request as the decode engine got it; its times and credit mean nothing to the prefill
    engine."""
    held_tokens: int
    """Leading tokens, in whole pages, that the decode engine has cached; their chunks are not
    announced."""
    prompt_hash: str
    deadline_seconds: float
    """Seconds from now that the decode engine waits for `Finished`."""


class Chunk(HandoverMessage, frozen=True):
    """Prefill → decode: keys and values of tokens [start, end) are in these pages."""

    room: int
    start: int
    """First token of the chunk: it follows the previous chunk, or is that of the first chunk if the
    prompt is computed a second time."""
    end: int
    page_ids: tuple[int, ...]
    checksum: int
    """xxh3_64 over the bytes of the pages, in this order; the room's number is the seed."""


class Finished(HandoverMessage, frozen=True):
    """Prefill → decode: all chunks were announced; this message has the first token."""

    room: int
    token_id: int
    end: int
    """Number of tokens of the prompt, where the last chunk ends."""
    prompt_hash: str
    """`PromptHash` of the tokens that were computed, in hexadecimal."""
    cached_tokens: int
    """Prompt tokens that the prefill engine had cached."""
    queue_seconds: float = 0.0
    """Seconds from `Bootstrap` to the first step that computed some of the prompt."""
    logprob: TokenLogprob | None = None
    prompt_logprobs: list[TokenLogprob] | None = None


class ChunkRead(HandoverMessage, frozen=True):
    """Decode → prefill, if pages are staged: the chunk that ends at `end` was read and verified,
    and more of the prompt is to come. Its copies may be reused; its pages stay held."""

    room: int
    end: int


class Received(HandoverMessage, frozen=True):
    """Decode → prefill: all announced pages were read and their checksums agree."""

    room: int


class Attested(HandoverMessage, frozen=True):
    """Prefill → decode: the pages were held until `Received` came. The room is closed."""

    room: int


class Failed(HandoverMessage, frozen=True):
    """Prefill → decode: the room is closed; pages read from now on are not valid."""

    room: int
    error: str
    """One line for the client."""
    refusal: Refusal
    """Kind of the failure: `invalid` is the request's fault, everything else may work elsewhere."""


class Refused(HandoverMessage, frozen=True):
    """Prefill → decode: the answer to a `Hello` that is not accepted; the connection closes."""

    reason: str
    """Stable CamelCase: NotSigned, OutOfDate, Replayed, OtherEpoch, OtherVersion,
    FingerprintsDiffer, TooManyPeers."""
    error: str


class Cancel(HandoverMessage, frozen=True):
    """Decode → prefill: the request is cancelled; unknown rooms are ignored."""

    room: int
    error: str = ""
    """Reason for the log."""


class Ping(HandoverMessage, frozen=True):
    """Sign that the sender's process is alive, sent in both directions when nothing else was."""


ToPrefill = Hello | Bootstrap | ChunkRead | Received | Cancel | Ping
ToDecode = Welcome | Refused | Chunk | Finished | Attested | Failed | Ping
