"""Mooncake's traces: a JSON object a line, with the ids of the prompt's 512-token blocks.

`{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [id, ...]}`. An id stands for
a block with everything before it, so two prompts share a prefix as long as their leading ids are
equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sluice_simulator.errors import TraceError
from sluice_simulator.traces.request import BLOCK_TOKENS, TraceRequest

KEYS = ("timestamp", "input_length", "output_length", "hash_ids")


def read_lines(path: Path, lines: Iterable[str]) -> list[TraceRequest]:
    """One request a line; blank lines are skipped.

    Raises:
        TraceError: names the line, the value and what is allowed.
    """
    return [_request(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _request(path: Path, number: int, line: str) -> TraceRequest:
    try:
        row = json.loads(line)
    except ValueError:
        raise TraceError(path, number, line.strip()[:60], "a JSON object") from None
    if not isinstance(row, dict):
        raise TraceError(path, number, line.strip()[:60], "a JSON object")
    if missing := [key for key in KEYS if key not in row]:
        raise TraceError(path, number, sorted(row), f"an object with {', '.join(missing)}")
    prompt = _whole(path, number, row, "input_length", 1)
    return TraceRequest(
        arrival_seconds=_whole(path, number, row, "timestamp", 0) / 1000,
        prompt_tokens=prompt,
        output_tokens=_whole(path, number, row, "output_length", 1),
        block_ids=_blocks(path, number, row["hash_ids"], prompt),
    )


def _whole(path: Path, number: int, row: dict[str, Any], key: str, least: int) -> int:
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
