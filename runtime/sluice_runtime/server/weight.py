"""Refuses, before it is parsed, a body of more values than any request needs.

Making millions of Python objects holds up every stream of the process, in whichever thread it
happens; counting their separators takes a hundredth of the time. Knows the fields' names, and
nothing of what is in them.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
from sluice_contract import http_errors

from sluice_runtime.errors import InvalidRequestError
from sluice_runtime.server.failures import MistakenError
from sluice_runtime.server.not_implemented import ROWS
from sluice_runtime.server.protocol import MAX_PROMPTS
from sluice_runtime.server.request_model import RequestModel

MOST_VALUES: Final = 65_536
"""Texts, lists and objects of a body; and, again, numbers that are no prompt's token ids."""
_LIGHT_BYTES: Final = 64 * 1024
"""So short a body cannot hold too many."""
_UNMARKED: Final = bytes(set(range(256)) - set(b'",[{'))


class _Counts(NamedTuple):
    """How many values a JSON text has, without looking into its texts."""

    texts: int
    lists: int
    objects: int
    commas: int


def refuse_heavy(kind: type[RequestModel], body: bytes, prompt_tokens: int) -> None:
    """`prompt_tokens`: how many token ids a prompt may have.

    Raises:
        InvalidRequestError: the body holds too many values; `param` is the field that does.
        MistakenError: besides, it is no JSON object.
    """
    if len(body) <= _LIGHT_BYTES:
        return
    counts = _counted(body)
    token_ids = min(counts.lists, MAX_PROMPTS) * prompt_tokens
    if (
        counts.texts + counts.lists + counts.objects <= MOST_VALUES
        and counts.commas <= MOST_VALUES + token_ids
    ):
        return
    field = _largest(kind, body)
    raise InvalidRequestError(
        f"{field or 'the body'}: holds too many values; allowed: {MOST_VALUES} texts, lists and "
        f"objects, as many numbers, and {prompt_tokens} token ids a prompt",
        field,
    )


def _counted(body: bytes) -> _Counts:
    """Every pass is a library's loop over bytes: a text's escapes go first, then all but the
    marks, then what is between an odd quote and the next."""
    if b"\\" in body:
        body = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = body.translate(None, _UNMARKED)
    texts = marks.count(b'"') // 2
    if texts > MOST_VALUES:
        return _Counts(texts, 0, 0, 0)
    outside = b"".join(marks.split(b'"')[::2])
    return _Counts(texts, outside.count(b"["), outside.count(b"{"), outside.count(b","))


def _largest(kind: type[RequestModel], body: bytes) -> str | None:
    """The known field that has most of the body; None: no one has."""
    try:
        fields = msgspec.json.decode(body, type=_raw_fields(kind))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise MistakenError(http_errors.not_json(body)) from None
    sizes = {name: len(getattr(fields, name)) for name in fields.__struct_fields__}
    largest = max(sizes, key=lambda name: sizes[name])
    return largest if 2 * sizes[largest] > len(body) else None


@cache
def _raw_fields(kind: type[RequestModel]) -> Any:
    """A type whose decoder steps over the values of all fields, and makes no objects of them."""
    names = {*(field.alias or name for name, field in kind.model_fields.items()), *ROWS}
    return msgspec.defstruct("Fields", [(name, msgspec.Raw, msgspec.Raw()) for name in names])
