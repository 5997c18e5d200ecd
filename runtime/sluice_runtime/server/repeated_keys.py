"""Refuses a body in which an object has a key twice: whichever value was meant, one is lost.

An object's keys are as many as its colons; counting those of the whole body takes less time than
parsing it, and only a body that has too many is read again for the key.
"""

from __future__ import annotations

from typing import Any, Final

from sluice_contract.http_errors import shown
from sluice_contract.repeated_keys import AGAIN, repeated_key

from sluice_runtime.errors import InvalidRequestError

_UNMARKED: Final = bytes(set(range(256)) - set(b'":'))


def refuse_repeated_keys(body: bytes, value: dict[str, Any]) -> None:
    """`value`: what `body` was parsed as.

    Raises:
        InvalidRequestError: `param` is the key, if it is one of the body's own.
    """
    if _colons(body) == _keys(value):
        return
    if repeated := repeated_key(body):
        key = shown(repeated.key)
        raise InvalidRequestError(f"key {key!r} {AGAIN}", key if repeated.outermost else None)


def _colons(body: bytes) -> int:
    """Of JSON, outside its texts; every pass is a library's loop over bytes."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(body.translate(None, _UNMARKED).split(b'"')[::2]).count(b":")


def _keys(value: object) -> int:
    """Keys of all objects in a value; a list that begins with a number is taken for token ids, and
    stepped over."""
    keys, waiting = 0, [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            keys += len(part)
            waiting += [one for one in part.values() if isinstance(one, dict | list)]
        elif isinstance(part, list) and part and not isinstance(part[0], int):
            waiting += [one for one in part if isinstance(one, dict | list)]
    return keys
