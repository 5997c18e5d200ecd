"""Asks a service one thing, as any OpenAI client would, and shows the answer as it streams.

Standard library only: it runs before there is an environment with the openai package.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator


def stream_completion(url: str, model: str, prompt: str, max_tokens: int) -> Iterator[str]:
    """The pieces of text of one streamed completion."""
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "stream": True}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        for line in answer:
            event = line.decode().strip().removeprefix("data: ")
            if event and event != "[DONE]":
                yield json.loads(event)["choices"][0]["text"]


def show_completion(url: str, model: str, prompt: str, max_tokens: int) -> str:
    """Prints prompt and answer to standard output as it comes; returns the answer."""
    started = time.monotonic()
    first_seconds = 0.0
    pieces: list[str] = []
    print(f"  prompt  {prompt.rstrip()}\n  answer  ", end="", flush=True)
    for piece in stream_completion(url, model, prompt, max_tokens):
        first_seconds = first_seconds or time.monotonic() - started
        pieces.append(piece)
        sys.stdout.write(piece)
        sys.stdout.flush()
    seconds = time.monotonic() - started
    print(f"\n  first token after {first_seconds * 1e3:.0f} ms, all after {seconds * 1e3:.0f} ms")
    return "".join(pieces)
