"""One message is one line of the log, whoever has a part in its words."""

from __future__ import annotations

import logging
import sys

from sluice_contract.log_lines import MAX_LOG_CHARACTERS, LineFormatter


def line_of(message: str, *args: object, with_traceback: bool = False) -> str:
    info = sys.exc_info() if with_traceback else None
    record = logging.LogRecord("sluice", logging.INFO, "", 0, message, args, info)
    return LineFormatter("%(levelname)s %(message)s").format(record)


def test_what_would_end_the_line_is_escaped() -> None:
    line = line_of("%s refused", "a\nCRITICAL forged\x1b[2J\udc80")
    assert line == "INFO a\\nCRITICAL forged\\x1b[2J\\udc80 refused"


def test_a_long_message_is_cut() -> None:
    line = line_of("%s", "x" * 10**6)
    assert line == "INFO " + "x" * MAX_LOG_CHARACTERS + "…"


def test_no_line_of_a_traceback_begins_as_a_message_does() -> None:
    try:
        raise ValueError("a\nCRITICAL forged\x1b[2J")
    except ValueError:
        first, *rest = line_of("failed", with_traceback=True).splitlines()
    assert first == "INFO failed"
    assert rest[0] == "  Traceback (most recent call last):"
    assert rest[-2:] == ["  ValueError: a", "  CRITICAL forged\\x1b[2J"]
