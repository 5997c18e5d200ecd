"""Traces from files, whose suffix tells the format: Mooncake's and Azure's. Traces are data, kept
outside the sources.

Mooncake's is a JSON object a line, with the ids of the prompt's 512-token blocks:
`{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [id, ...]}`. An id stands for
a block with everything before it, so two prompts share a prefix as long as their leading ids are
equal.

Azure's is CSV with a UTC time, tokens of context and tokens generated, without shared prefixes:
`TIMESTAMP,ContextTokens,GeneratedTokens`; times have a resolution of 100 ns: `2023-11-16
18:15:46.6805900`.
"""

from __future__ import annotations

import csv
import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sluice_simulator.errors import TraceError, UnusableFileError
from sluice_simulator.traces.request import BLOCK_TOKENS, Trace, TraceRequest, trace_of

AZURE_HEADER: Final = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
MOONCAKE_KEYS: Final = ("timestamp", "input_length", "output_length", "hash_ids")


def read_trace(path: Path) -> Trace:
    """The trace in the file at `path`, named after it.

    Raises:
        UnusableFileError: the file does not exist, is not text, or holds no request.
        TraceError: a line that cannot be read.
    """
    if path.suffix not in READERS:
        if not path.exists():
            raise UnusableFileError(f"{path}: {os.strerror(errno.ENOENT)}")
        allowed = ", ".join(f"{suffix} ({origin})" for suffix, (origin, _) in READERS.items())
        raise UnusableFileError(f"{path}: {path.suffix!r} is not allowed; allowed: {allowed}")
    try:
        with path.open(encoding="utf-8", newline="") as lines:
            requests = READERS[path.suffix][1](path, lines)
    except OSError as error:
        raise UnusableFileError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UnusableFileError(f"{path}: not UTF-8 text") from None
    if not requests:
        raise UnusableFileError(f"{path}: holds no request")
    return trace_of(path.stem, requests)


def mooncake_requests(path: Path, lines: Iterable[str]) -> list[TraceRequest]:
    """One request a line; blank lines are skipped.

    Raises:
        TraceError: names the line, the value and what is allowed.
    """
    return [
        _mooncake_request(path, number, line)
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def _mooncake_request(path: Path, number: int, line: str) -> TraceRequest:
    try:
        row = json.loads(line)
    except ValueError:
        raise TraceError(path, number, line.strip()[:60], "a JSON object") from None
    if not isinstance(row, dict):
        raise TraceError(path, number, line.strip()[:60], "a JSON object")
    if missing := [key for key in MOONCAKE_KEYS if key not in row]:
        raise TraceError(path, number, sorted(row), f"an object with {', '.join(missing)}")
    prompt = _mooncake_whole(path, number, row, "input_length", 1)
    return TraceRequest(
        arrival_seconds=_mooncake_whole(path, number, row, "timestamp", 0) / 1000,
        prompt_tokens=prompt,
        output_tokens=_mooncake_whole(path, number, row, "output_length", 1),
        block_ids=_blocks(path, number, row["hash_ids"], prompt),
    )


def _mooncake_whole(path: Path, number: int, row: dict[str, Any], key: str, least: int) -> int:
    value = row[key]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise TraceError(path, number, {key: value}, f"{key}: a whole number of at least {least}")
    return value


def _blocks(path: Path, number: int, ids: object, prompt_tokens: int) -> tuple[int, ...]:
    count = -(-prompt_tokens // BLOCK_TOKENS)
    good = isinstance(ids, list) and all(
        isinstance(block, int) and not isinstance(block, bool) and block >= 0 for block in ids
    )
    if not good or len(ids) != count:  # type: ignore[arg-type]
        allowed = (
            f"hash_ids: {count} whole numbers, one per {BLOCK_TOKENS} of {prompt_tokens} tokens"
        )
        raise TraceError(path, number, {"hash_ids": _short(ids)}, allowed)
    return tuple(ids)  # type: ignore[arg-type]


def _short(ids: object) -> object:
    return f"{len(ids)} values" if isinstance(ids, list) and len(ids) > 4 else ids


def azure_requests(path: Path, lines: Iterable[str]) -> list[TraceRequest]:
    """One request for each row, the earliest at time 0. A request that generated nothing gets one
    token.

    Raises:
        TraceError: names the line, the value and what is allowed.
    """
    rows = csv.reader(lines)
    header = next(rows, [])
    if header != AZURE_HEADER:
        raise TraceError(path, 1, ",".join(header)[:60], f"the header {','.join(AZURE_HEADER)}")
    requests = [_azure_request(path, rows.line_num, row) for row in rows if row]
    began = min((request.arrival_seconds for request in requests), default=0.0)
    return [replace(r, arrival_seconds=r.arrival_seconds - began) for r in requests]


def _azure_request(path: Path, number: int, row: list[str]) -> TraceRequest:
    if len(row) != len(AZURE_HEADER):
        raise TraceError(path, number, ",".join(row)[:60], f"{len(AZURE_HEADER)} columns")
    when, prompt, output = row
    return TraceRequest(
        arrival_seconds=_seconds(path, number, when),
        prompt_tokens=_azure_whole(path, number, AZURE_HEADER[1], prompt, 1),
        output_tokens=max(1, _azure_whole(path, number, AZURE_HEADER[2], output, 0)),
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


def _azure_whole(path: Path, number: int, name: str, text: str, least: int) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < least:
        raise TraceError(path, number, text, f"{name}: a whole number of at least {least}")
    return int(text)


Reader = Callable[[Path, Iterable[str]], list[TraceRequest]]
READERS: Final[Mapping[str, tuple[str, Reader]]] = {
    ".jsonl": ("mooncake", mooncake_requests),
    ".csv": ("azure", azure_requests),
}
"""Origin and reader of a file, by its suffix."""
