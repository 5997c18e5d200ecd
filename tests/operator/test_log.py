"""A line of the log: one line, whatever is in it, and readable by programs."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

import pytest
from sluice_operator.log import Format, LineFormatter, fields


def line(form: Format, event: str, error: bool = False, **values: Any) -> str:
    trace = None
    if error:
        try:
            raise ValueError("two\nlines")
        except ValueError:
            trace = sys.exc_info()
    record = logging.LogRecord("sluice", logging.INFO, "", 0, event, None, trace)
    record.__dict__.update(fields(**values))
    return LineFormatter(form).format(record)


def test_text_is_pairs_with_quotes_where_they_are_needed() -> None:
    found = line("text", "Scaled", service="chat", message='from "1" to 3', replicas=3)
    head, _, rest = found.partition(" ")
    assert head.startswith("time=20")
    assert head.endswith("Z")
    pairs = r'service=chat message="from \"1\" to 3" replicas=3'
    assert rest == f"level=info logger=sluice event=Scaled {pairs}"


def test_json_is_an_object() -> None:
    found = json.loads(line("json", "leading", lease="a/b", failures=2))
    assert found.keys() == {"time", "level", "logger", "event", "lease", "failures"}
    assert (found["event"], found["failures"]) == ("leading", 2)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_stays_on_the_line(form: Format) -> None:
    found = line(form, "reconcile failed", error=True, name="a\nb")
    assert "\n" not in found
    assert "ValueError: two" in found
