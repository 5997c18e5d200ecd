"""Puts text from clients on one line, escaped and cut short, for refusals and log messages. Lines
of a traceback are indented, so that none can be taken for a message."""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Final

import pydantic
import pydantic_core

_SHOWN_CHARACTERS: Final = 60

_SHOWN_ITEMS: Final = 100
"""Most items of a list, or characters of a text, that are read; more than is shown."""


def shown(text: str, max_characters: int = _SHOWN_CHARACTERS) -> str:
    """A client's text, cut short, on one line, with unprintable characters escaped."""
    if len(text) > max_characters:
        text = text[:max_characters] + "…"
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def shown_json(value: object) -> str:
    """A client's value as JSON, cut short; only for replies to the client, not for logs."""
    if isinstance(value, str | list):
        value = value[:_SHOWN_ITEMS]
    if isinstance(value, str):
        value = value.encode(errors="replace").decode()
    return shown(pydantic_core.to_json(value, fallback=str).decode())


def json_type(value: object) -> str | None:
    """Name of the JSON type of a string, a list, or an object (also as a pydantic model), for
    refusals; None for other values."""
    if isinstance(value, str):
        return "a string"
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict | pydantic.BaseModel) else None


ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

MAX_LOG_CHARACTERS: Final = 4096
"""Most characters of one message, and of one line of a traceback."""


class LineFormatter(logging.Formatter):
    """Formatter that escapes unprintable characters."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line of the message."""
        record.message = shown(record.message, MAX_LOG_CHARACTERS)
        return super().formatMessage(record)

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802
        """The indented lines of a traceback, without a final line end."""
        lines = super().formatException(ei).splitlines()
        return "\n".join("  " + shown(line, MAX_LOG_CHARACTERS) for line in lines)


def log_to_stderr(level: int = logging.INFO, sender: str = "") -> None:
    """Makes every logger of this process write to stderr; each message begins with `sender`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(f"%(asctime)s %(levelname)s {sender}%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
