"""The grammar library's errors and warnings, as one line for the client."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sluice_contract.http_errors import shown_json

from sluice_runtime.errors import GrammarError
from sluice_runtime.wire.messages import GrammarKind

_STDERR: Final = 2
_MAX_CAPTURED_BYTES: Final = 4096
_MAX_CHARACTERS: Final = 300
_SOURCE: Final = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Warning: )?")
"""Time, file and line that the library puts before each message."""


@contextmanager
def captured_stderr() -> Iterator[io.BytesIO]:
    """What the process writes to standard error inside the block; readable after it.

    The library only warns there about parts of a grammar that it ignores.
    """
    captured, stderr = io.BytesIO(), os.dup(_STDERR)
    file_descriptor = os.memfd_create("stderr")
    os.dup2(file_descriptor, _STDERR)
    try:
        yield captured
    finally:
        os.dup2(stderr, _STDERR)
        os.close(stderr)
        with open(file_descriptor, "rb") as file:
            file.seek(0)
            captured.write(file.read(_MAX_CAPTURED_BYTES))


def first_line(message: str) -> str:
    """The first line of an error or of several warnings, cut short; "" if there is none."""
    return _SOURCE.sub("", message.strip().partition("\n")[0]).strip()[:_MAX_CHARACTERS]


def refusal(kind: GrammarKind, text: str, reason: str) -> GrammarError:
    """A grammar that cannot be used; shows a regular expression or EBNF grammar, cut short."""
    value = f"{shown_json(text)}: " if kind in ("regex", "ebnf") else ""
    return GrammarError(f"{value}{reason}")
