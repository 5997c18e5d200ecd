"""Azure's traces: CSV with a UTC time, tokens of context and tokens generated; no shared prefixes.

`TIMESTAMP,ContextTokens,GeneratedTokens`; times have a resolution of 100 ns: `2023-11-16
18:15:46.6805900`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from sluice_simulator.errors import TraceError
from sluice_simulator.traces.request import TraceRequest

HEADER: Final = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read_lines(path: Path, lines: Iterable[str]) -> list[TraceRequest]:
    """One request for each row, the earliest at time 0. A request that generated nothing gets one
    token.

    Raises:
        TraceError: names the line, the value and what is allowed.
    """
    rows = csv.reader(lines)
    header = next(rows, [])
    if header != HEADER:
        raise TraceError(path, 1, ",".join(header)[:60], f"the header {','.join(HEADER)}")
    requests = [_request(path, rows.line_num, row) for row in rows if row]
    began = min((request.arrival_seconds for request in requests), default=0.0)
    return [replace(r, arrival_seconds=r.arrival_seconds - began) for r in requests]


def _request(path: Path, number: int, row: list[str]) -> TraceRequest:
    if len(row) != len(HEADER):
        raise TraceError(path, number, ",".join(row)[:60], f"{len(HEADER)} columns")
    when, prompt, output = row
    return TraceRequest(
        arrival_seconds=_seconds(path, number, when),
        prompt_tokens=_whole(path, number, HEADER[1], prompt, 1),
        output_tokens=max(1, _whole(path, number, HEADER[2], output, 0)),
    )


def _seconds(path: Path, number: int, text: str) -> float:
    """Seconds of a timestamp. datetime cannot hold 100 ns, so the fraction is read separately."""
    whole, _, fraction = text.partition(".")
    try:
        moment = datetime.strptime(whole, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC)
        return moment.timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        allowed = "TIMESTAMP: a time like 2023-11-16 18:15:46.6805900"
        raise TraceError(path, number, text, allowed) from None


def _whole(path: Path, number: int, name: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise TraceError(path, number, text, f"{name}: a whole number of at least {least}")
    return int(text)
