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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx

from benchmarks.startup import started_engine, wait_for

TARGET_SECONDS = 0.1
MODEL = "bench"
SLOW = "a grammar that is never done"
"""Refused at its limit; all that is asked is that others do not feel it."""
FOLLOWED = "a grammar that is slow to follow"
"""The same: refused while it is compiled, in a process that may take its time."""
LATER = "a grammar that is slow to follow, later"
"""Behind more tokens than the compile process tries: the request runs and is given up."""
COLD = "broken regex, the first grammar of an engine"
"""Asked once: the next one finds it remembered."""
ONCE = (COLD, SLOW, FOLLOWED, LATER)
AMBIGUOUS = "(a{0,60}){0,60}b"
MUST_A = {str(ord("a")): 100}
"""Else an answer may soon end with a "b"."""
SETTLED_SECONDS = 0.2
"""How long after a refusal its cost may still show."""

Case = tuple[bytes, str | None]


def cases(body_bytes: int) -> dict[str, Case]:
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
        "huge prompt of code": (_body(prompt='{"a": [1]}, ' * (room // 16)), "prompt"),
        "many token ids": (_body(prompt=[1] * (room // 3)), "prompt"),
        "many prompts": (_body(prompt=[""] * (room // 4)), "prompt"),
        "many empty lists": (_body(prompt=[[]] * (room // 4)), "prompt"),
        "many fields": (_body(**{f"f{number}": 1 for number in range(room // 14)}), None),
        "many unknown fields": (
            _body(**{f"f{number}": 1 for number in range(60_000)}, max_tokens=10**9),
            "max_tokens",
        ),
        "many biases": (_body(logit_bias={str(n): "" for n in range(30_000)}), "logit_bias"),
        "1e9 max_tokens": (_body(max_tokens=10**9), "max_tokens"),
        "NUL": (_body(guided_regex="a\0b"), "guided_regex"),
        "bad UTF-8": (_body(prompt="a").replace(b'"a"', b'"\xff\xfe"'), None),
        "deep JSON": (b'{"model": ' + b"[" * room, None),
        "deep prompt": (b'{"model":"bench","prompt":' + b"[" * 100 + b"]" * 100 + b"}", "prompt"),
        "deep schema": (_body(response_format=schema), None),
        COLD: (_body(structured_outputs={"regex": "(a"}), "structured_outputs"),
        "broken regex": (_body(structured_outputs={"regex": "(a"}), "structured_outputs"),
        SLOW: (_body(response_format=never), "response_format"),
        FOLLOWED: (_body(structured_outputs={"regex": AMBIGUOUS}), "structured_outputs"),
        LATER: (
            _body(
                structured_outputs={"regex": "[xy]{80}" + AMBIGUOUS},
                logit_bias=MUST_A,
                max_tokens=500,
            ),
            "structured_outputs",
        ),
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
    bodies = cases(options.body_bytes)
    with started_engine(config) as (url, process):
        wait_for(f"{url}/ready", process)
        late = refused_alone(url, bodies, options.runs)
    with started_engine(config) as (url, process):
        wait_for(f"{url}/ready", process)
        refused_beside_a_stream(url, bodies)
    print(json.dumps({"bench": "malformed", "later_than_100_ms": late}))


def refused_alone(url: str, bodies: Mapping[str, Case], runs: int) -> list[str]:
    """Prints a line a case; returns those that are later than they may be."""
    late = []
    with httpx.Client(base_url=url, timeout=60) as client:
        for name, case in bodies.items():
            once = name in ONCE
            seconds = [refused_seconds(client, name, case) for _ in range(1 if once else runs)]
            _print("alone", name, seconds)
            if name not in (SLOW, FOLLOWED, LATER) and statistics.median(seconds) > TARGET_SECONDS:
                late.append(name)
    return late


def refused_beside_a_stream(url: str, bodies: Mapping[str, Case]) -> None:
    """Prints the longest wait of another client for a token, a line a case."""
    with httpx.Client(base_url=url, timeout=60) as client, streaming(url) as gaps:
        gaps.clear()
        time.sleep(1)
        _print("stream", "undisturbed", [_longest(gaps)])
        for name, case in bodies.items():
            gaps.clear()
            refused_seconds(client, name, case)
            time.sleep(SETTLED_SECONDS)
            _print("stream", name, [_longest(gaps)])


def _longest(gaps: list[float]) -> float:
    """Once there is one: a gap is known when it has ended."""
    while not gaps:
        time.sleep(0.01)
    return max(gaps)


def refused_seconds(client: httpx.Client, name: str, case: Case) -> float:
    """How long the refusal took; it must be a 400 that names the field."""
    body, param = case
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
    """Seconds between the tokens of one client, who asks again when an answer has ended."""
    gaps, stopping, begun = [0.0], threading.Event(), threading.Event()
    body = {"model": MODEL, "prompt": "a", "stream": True, "ignore_eos": True, "max_tokens": 4000}

    def read() -> None:
        last = time.monotonic()
        while not stopping.is_set():
            with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
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
