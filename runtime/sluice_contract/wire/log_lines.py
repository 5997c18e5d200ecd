"""The log of router and engines: a message is one line, cut short, whatever clients sent.

A traceback follows its message on indented lines, so that none of them passes for a message.
"""

from __future__ import annotations

import logging
import sys
from types import TracebackType
from typing import Final

from sluice_contract.http_errors import shown

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]

MAX_CHARACTERS: Final = 4096
"""Of one message, and of one line of a traceback."""


class LineFormatter(logging.Formatter):
    """Escapes what is not printable."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line of the message."""
        record.message = shown(record.message, MAX_CHARACTERS)
        return super().formatMessage(record)

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802
        """The lines of a traceback, without the last end."""
        lines = super().formatException(ei).splitlines()
        return "\n".join("  " + shown(line, MAX_CHARACTERS) for line in lines)


def log_to_stderr(level: int = logging.INFO, sender: str = "") -> None:
    """Has every logger of this process write to stderr; `sender` begins each message."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(f"%(asctime)s %(levelname)s {sender}%(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
