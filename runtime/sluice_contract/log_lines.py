"""Text of others on one line, escaped and cut short: in refusals, and in messages of the log. A
traceback follows its message on indented lines, so that none of them passes for a message."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Final

import pydantic
import pydantic_core

_SHOWN_CHARACTERS: Final = 60

_SHOWN_ITEMS: Final = 100
"""Items of a list, or characters of a text, that are looked at: more than is shown in the end."""


def shown(text: str, max_characters: int = _SHOWN_CHARACTERS) -> str:
    """A client's own text, cut short and on one line: other characters are escaped."""
    if len(text) > max_characters:
        text = text[:max_characters] + "…"
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shown_json(value: object) -> str:
    """A client's own value as JSON, cut short: it goes back to the client and into no log."""
    if isinstance(value, str | list):
        value = value[:_SHOWN_ITEMS]
    if isinstance(value, str):
        value = value.encode(errors="replace").decode()
    return shown(pydantic_core.to_json(value, fallback=str).decode())


def json_type(value: object) -> str | None:
    """Type name of a string, a list, an object or its model, as refusals name it; None of all
    others."""
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict | pydantic.BaseModel) else None


ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

MAX_LOG_CHARACTERS: Final = 4096
"""Most characters of one message, and of one line of a traceback."""


class LineFormatter(logging.Formatter):
    """Escapes what is not printable."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line of the message."""
        record.message = shown(record.message, MAX_LOG_CHARACTERS)
        return super().formatMessage(record)

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802
        """The lines of a traceback, without the last end."""
        lines = super().formatException(ei).splitlines()
        return "\n".join("  " + shown(line, MAX_LOG_CHARACTERS) for line in lines)


def log_to_stderr(level: int = logging.INFO, sender: str = "") -> None:
    """Has every logger of this process write to stderr; `sender` begins each message."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(f"%(asctime)s %(levelname)s {sender}%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
