"""Requests that are at fault: how long each takes to be refused, and by which field.

One engine, asked over HTTP while nothing else runs and again beside a streaming client, whose gaps
show that others are unaffected. Prints one JSON line a case; a refusal that is no 400, or that does
not name its field, ends the program.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from benchmarks.startup import started_engine, wait_for

TARGET_SECONDS = 0.1
MODEL = "bench"
SLOW = "a grammar that is never done"
"""Refused when its time is up; all that is asked is that others do not feel it."""


def cases(body_bytes: int) -> dict[str, tuple[bytes, str | None]]:
    """By name: a body, and the field that its refusal names."""
    deep: Any = {}
    for _ in range(200):
        deep = {"type": "object", "properties": {"a": deep}}
    room = body_bytes - 200
    schema = {"type": "json_schema", "json_schema": {"name": "deep", "schema": deep}}
    names = {f"p{number}": {"type": "string"} for number in range(1500)}
    slow = {"type": "object", "properties": names}
    never = {"type": "json_schema", "json_schema": {"name": "slow", "schema": slow}}
    return {
        "huge prompt": (_body(prompt="all the words " * (room // 14)), "prompt"),
        "huge prompt without a space": (_body(prompt="x" * room), "prompt"),
        "many token ids": (_body(prompt=[1] * (room // 3)), "prompt"),
        "1e9 max_tokens": (_body(max_tokens=10**9), "max_tokens"),
        "NUL": (_body(prompt="a\0b"), "prompt"),
        "bad UTF-8": (_body(prompt="a").replace(b'"a"', b'"\xff\xfe"'), None),
        "deep JSON": (b'{"model": ' + b"[" * room, None),
        "deep prompt": (b'{"model":"bench","prompt":' + b"[" * 100 + b"]" * 100 + b"}", "prompt"),
        "deep schema": (_body(response_format=schema), None),
        "broken regex": (_body(structured_outputs={"regex": "(a"}), "structured_outputs"),
        SLOW: (_body(response_format=never), "response_format"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="dummy://qwen3-tiny")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--body-bytes", type=int, default=8 * 1024 * 1024)
    options = parser.parse_args()
    config = {
        "model": {"uri": options.model, "name": MODEL},
        "server": {"maxBodyBytes": options.body_bytes},
    }
    late = []
    with (
        started_engine(config) as (url, process),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        wait_for(f"{url}/ready", process)
        for name, (body, param) in cases(options.body_bytes).items():
            runs = 1 if name == SLOW else options.runs
            seconds = [refused_seconds(client, name, body, param) for _ in range(runs)]
            _print("alone", name, seconds)
            late += [name] if name != SLOW and statistics.median(seconds) > TARGET_SECONDS else []
        with streaming(url) as gaps:
            for body, param in cases(options.body_bytes).values():
                refused_seconds(client, "beside a stream", body, param)
        _print("stream", "longest gap beside all of them", [max(gaps)])
    print(json.dumps({"bench": "malformed", "later_than_100_ms": late}))


def refused_seconds(client: httpx.Client, name: str, body: bytes, param: str | None) -> float:
    """How long the refusal took; it must be a 400 that names the field."""
    began = time.monotonic()
    response = client.post("/v1/completions", content=body)
    seconds = time.monotonic() - began
    error = response.json().get("error", {})
    named = (error.get("param") or "").partition(".")[0].partition("[")[0] or None
    if response.status_code != 400 or named != param:
        raise SystemExit(f"{name}: {response.status_code} {response.text[:300]}")
    return seconds


@contextmanager
def streaming(url: str) -> Iterator[list[float]]:
    """Seconds between the tokens of one client, while the context lasts."""
    gaps, stopping, begun = [0.0], threading.Event(), threading.Event()

    def read() -> None:
        body = {"model": MODEL, "prompt": "a", "stream": True, "ignore_eos": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            last = time.monotonic()
            for _ in response.iter_lines():
                now = time.monotonic()
                gaps.append(now - last)
                last = now
                begun.set()
                if stopping.is_set():
                    return

    reader = threading.Thread(target=read)
    reader.start()
    begun.wait(60)
    try:
        yield gaps
    finally:
        stopping.set()
        reader.join()


def _print(kind: str, name: str, seconds: list[float]) -> None:
    figures = {"median_ms": statistics.median(seconds) * 1e3, "worst_ms": max(seconds) * 1e3}
    rounded = {key: round(value, 1) for key, value in figures.items()}
    print(json.dumps({"bench": "malformed", "kind": kind, "case": name, **rounded}), flush=True)


def _body(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "a", **fields}).encode()


if __name__ == "__main__":
    main()
