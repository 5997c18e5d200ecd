"""Private calls: how the router sends a request so that another engine can resume its answer.

A private call is a POST to a generating route, with a signed header. Its body is one line of JSON,
`CallHead`, then the client's body unchanged, so that no field of the client is taken for ours. The
answer is an event stream; its comment lines, `EventComment`, hold what a resume needs. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from sluice_contract.wire.handover import (
    Bound,
    InvalidSignatureError,
    Verified,
    signed_claims,
    verified_claims,
)

PRIVATE_HEADER: Final = "X-Sluice-Private"
"""`BASE64URL(JSON).HEX(HMAC-SHA256)` over request id, time, path and body, from the router."""
ROLE_PATH: Final = "/role"
"""Path at which an engine is asked to take another role."""
HAND_BACK_PATH: Final = "/hand-back"
"""Path at which an engine is asked for requests that it has not begun."""
MAX_HAND_BACK: Final = 64
"""Most requests that a call of `HAND_BACK_PATH` may name."""
RESUME_MISMATCH: Final = "resume_mismatch"
"""Error code of a 409: this engine would not continue from the same prompt."""
MORE_LINE: Final = b': {"more":true}\n'
"""First line of an event that must be passed on together with the next one, or not at all."""
_LABEL: Final = b"sluice private call 1\0"


class _Value(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """camelCase outside; unknown keys are ignored, so that a newer router or engine may add one."""


class Score(_Value, frozen=True, array_like=True):
    """A token's logprob, its rank, and the most probable tokens with theirs."""

    logprob: float
    rank: int
    top: list[tuple[int, float]] = []


class AnswerStart(_Value, frozen=True):
    """Identity of an answer, from the first comment of its stream; a resume sends it to the new
    engine."""

    id: str
    created: int
    prompt_hash: str
    """Hash of the token ids of all prompts."""
    max_tokens: list[int]
    """Token limits, one for each choice, so the length is the number of choices."""
    prompt_tokens: int = 0
    """Tokens of all prompts together."""
    answer_identity: str = ""
    """Answer identity of the engine that began the answer, from its load report. An engine with
    another identity does not continue the answer."""


class ChoiceSoFar(_Value, frozen=True):
    """One choice so far: all earlier comments, joined."""

    ids: list[int] = []
    scores: list[Score] = []
    """Scores of the ids, one for each, or none at all."""
    cached: int = 0
    finished: bool = False
    """Whether the choice's last event, with its finish reason, was passed on."""


class Resume(_Value, frozen=True):
    """An answer that another engine began."""

    start: AnswerStart
    choices: list[ChoiceSoFar]


class CallHead(_Value, frozen=True):
    """The first line of a private call's body."""

    seed: int
    """A 63-bit seed for requests without one, so that all attempts sample the same tokens."""
    resume: Resume | None = None
    waited_seconds: float = 0.0
    """Seconds since the router received the request, from which the deadlines of a request that has
    not begun count."""
    moved: int = 0
    """Number of times that engines have handed the request back."""
    prompt_counted: bool = False
    """Whether an engine that handed the request back has counted its prompt as received."""


class EventComment(_Value, frozen=True):
    """State of the answer after this event, for a resume. Sent as `: ` and JSON, on the line before
    an event's data or alone."""

    start: AnswerStart | None = None
    """Start of the answer, in the first comment only."""
    c: list[tuple[int, list[int]]] = []
    """Choices and their next ids. Replaying a choice's ids reproduces what was sent of it."""
    scores: list[tuple[int, list[Score]]] = []
    """The scores of these ids, if the client asked for logprobs."""
    cached: list[tuple[int, int]] = []
    """Choices and their numbers of cached prompt tokens; sent with a choice's first ids."""
    f: list[int] = []
    """Choices that finish with this event."""
    last: bool = False
    """Whether only `[DONE]` follows this event."""


_HEAD: Final = msgspec.json.Decoder(CallHead)
_COMMENT: Final = msgspec.json.Decoder(EventComment)
_ENCODER: Final = msgspec.json.Encoder()


def head_line(head: CallHead) -> bytes:
    """The line with the head, to send before the client's body."""
    return _ENCODER.encode(head) + b"\n"


def split_body(body: bytes) -> tuple[CallHead, bytes]:
    """Head and client's body.

    Raises:
        ValueError: the body has no valid head; the message names the key.
    """
    line, _, client_body = body.partition(b"\n")
    return _HEAD.decode(line), client_body


def comment_line(comment: EventComment) -> bytes:
    """The comment as a line, with its line end."""
    return b": " + _ENCODER.encode(comment) + b"\n"


def read_comment(line: bytes) -> EventComment:
    """The content of a line that begins with `: `; its end may be there or not.

    Raises:
        ValueError: the line holds no `EventComment`.
    """
    return _COMMENT.decode(line[2:])


def signed_call(key: bytes, request_id: str, bound: Bound, now_unix: float) -> str:
    """The private header's value for a request with the path and body of `bound`."""
    return signed_claims(key, _LABEL, {}, request_id, now_unix, bound)


def verified_call(
    keys: Sequence[bytes], value: str, request_id: str, path: str, now_unix: float
) -> Verified[None]:
    """Proof that the request is a private call, if `refuse_other_body` accepts its body.

    Raises:
        InvalidSignatureError: the header was not signed with these keys, or for another request, or
            too long ago.
    """
    try:
        _, digest = verified_claims(keys, _LABEL, value, request_id, path, now_unix)
    except InvalidSignatureError as error:
        raise InvalidSignatureError(f"{PRIVATE_HEADER}: {error}") from None
    return Verified(None, digest)
