"""The log: one line per event, as `key=value` pairs or as JSON.

The objects that a line is about are keys of the line: `logger.info("Scaled",
extra=fields(service="chat"))`.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

Format = Literal["text", "json"]

_PLAIN: Final = re.compile(r"[^\s\"=\\]+")
_FIELDS: Final = "fields"


def fields(**values: object) -> dict[str, object]:
    """Further keys of a line: the argument `extra` of a call to a logger."""
    return {_FIELDS: values}


def log_to_stderr(level: str, form: Format) -> None:
    """Has every logger of this process write to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter(form))
    logging.basicConfig(level=level, handlers=[handler])
    if level != "DEBUG":
        # The code that restarts Kopf logs why it ended; Kopf would only repeat the message.
        logging.getLogger("kopf").setLevel(logging.CRITICAL)


class LineFormatter(logging.Formatter):
    """Formats a record, its traceback included, as one line."""

    def __init__(self, form: Format) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        values = self._values(record)
        if self._form == "json":
            return json.dumps(values, default=str)
        return " ".join(f"{key}={_text(value)}" for key, value in values.items())

    def _values(self, record: logging.LogRecord) -> Mapping[str, Any]:
        moment = datetime.fromtimestamp(record.created, UTC)
        values = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            values["traceback"] = self.formatException(record.exc_info)
        return values


def _text(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)
