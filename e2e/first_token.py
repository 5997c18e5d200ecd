"""Asks a service one question, as any OpenAI client would, and shows the answer as it streams.

Standard library only: it runs before there is an environment with the openai package.
"""

from __future__ import annotations

import http.client
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from http.client import HTTPResponse

from e2e.cluster.errors import ClusterError

# A node's rules for a new Service come a moment after its pods are Ready.
FOLLOW_SECONDS = 10.0
POLL_SECONDS = 0.1


def stream_answer(url: str, model: str, question: str, max_tokens: int) -> Iterator[str]:
    """The pieces of text of one streamed greedy answer in a chat.

    Raises:
        ClusterError: with what the service answered, or why it cannot be reached.
    """
    body = {"model": model, "max_tokens": max_tokens, "stream": True}
    body["messages"] = [{"role": "user", "content": question}]
    body["temperature"] = 0  # sampled answers of a small model are now and then wrong
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with _open(request) as answer:
            yield from _pieces(answer, request.full_url)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise ClusterError(f"{request.full_url}: the answer broke off: {reason}") from error


def _pieces(answer: Iterable[bytes], url: str) -> Iterator[str]:
    for line in answer:
        event = line.decode().strip().removeprefix("data: ")
        if event == "[DONE]":
            return
        if event:
            data = json.loads(event)
            if "error" in data:
                raise ClusterError(f"{url}: {data['error']['message']}")
            yield data["choices"][0]["delta"].get("content") or ""
    raise ClusterError(f"{url}: the answer broke off before its end")


def _open(request: urllib.request.Request) -> HTTPResponse:
    # No proxy of the environment: the address is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + FOLLOW_SECONDS
    while True:
        try:
            answer = opener.open(request, timeout=60)
        except urllib.error.HTTPError as refusal:
            words = refusal.read().decode(errors="replace")
            raise ClusterError(f"{request.full_url}: {refusal}: {words}") from refusal
        except urllib.error.URLError as error:
            if time.monotonic() > deadline:
                raise ClusterError(f"{request.full_url}: {error.reason}") from error
        else:
            assert isinstance(answer, HTTPResponse)
            return answer
        time.sleep(POLL_SECONDS)


def show_answer(url: str, model: str, question: str, max_tokens: int) -> str:
    """Prints question and answer to standard output as it comes; returns the answer."""
    started = time.monotonic()
    first_seconds = 0.0
    pieces: list[str] = []
    print(f"  question  {question}\n  answer    ", end="", flush=True)
    for piece in filter(None, stream_answer(url, model, question, max_tokens)):
        first_seconds = first_seconds or time.monotonic() - started
        pieces.append(piece)
        sys.stdout.write(piece)
        sys.stdout.flush()
    seconds = time.monotonic() - started
    print(f"\n  first token after {first_seconds * 1e3:.0f} ms, all after {seconds * 1e3:.0f} ms")
    return "".join(pieces)
