"""Clients that ask one question after the other, without retries, while a story changes something.

Every answer is compared with the only right one, so an exchanged KV page is noticed.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import openai

from e2e.model.tasks import make_prompt
from e2e.stories.service import MODEL

CLIENTS = 6
PROMPT_BYTES = 256
LONG_PROMPT_BYTES = 1300
SEEDS = 1000
"""Seeds of prompts that the sample's model copies right; of other prompts, it gets one in several
hundred wrong."""
HUNG_SECONDS = 120


@dataclass
class Tally:
    """The clients' results."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    """Wrong answers and errors, including broken connections."""
    cut_off: int = 0
    """Connections that broke while `expects_cuts` was set; they are not wrong."""
    expects_cuts: bool = False
    progressed: threading.Condition = field(default_factory=threading.Condition)

    def record(self, error: str | None) -> None:
        with self.progressed:
            if error is None:
                self.right += 1
            else:
                self.wrong.append(error)
            self.progressed.notify_all()

    def record_cut(self, error: str) -> None:
        """Counts a connection that broke, or could not be made."""
        if not self.expects_cuts:
            self.record(error)
            return
        with self.progressed:
            self.cut_off += 1

    def wait_for_more(self, requests: int) -> None:
        """Waits until `requests` more requests were answered right."""
        with self.progressed:
            target = self.right + requests
            arrived = self.progressed.wait_for(
                lambda: self.right >= target or self.wrong, HUNG_SECONDS
            )
            assert arrived, f"{target - self.right} answers are missing"


@contextmanager
def load(url: str, clients: int = CLIENTS) -> Iterator[Tally]:
    """Clients that ask one copy task after the other until the block ends; every other streams."""
    with _asking(_ask, url, clients) as tally:
        yield tally


@contextmanager
def long_prompts(url: str, clients: int = CLIENTS) -> Iterator[Tally]:
    """Clients that send one long prompt after the other and want few tokens. Any tokens are right:
    the prompts are work for prefill."""
    with _asking(_ask_long, url, clients) as tally:
        yield tally


@contextmanager
def _asking(
    ask: Callable[[str, int, Tally, threading.Event], None], url: str, clients: int
) -> Iterator[Tally]:
    tally, stopping = Tally(), threading.Event()
    threads = [
        threading.Thread(target=ask, args=(url, number, tally, stopping))
        for number in range(clients)
    ]
    for thread in threads:
        thread.start()
    try:
        yield tally
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


def _ask(url: str, number: int, tally: Tally, stopping: threading.Event) -> None:
    client = openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=HUNG_SECONDS
    )
    seed = number
    while not stopping.is_set():
        seed = (seed + 100) % SEEDS
        prompt, answer = make_prompt("copy", PROMPT_BYTES, seed)
        try:
            text = _copy(client, prompt, streams=number % 2 == 0)
            tally.record(None if text == answer else f"seed {seed}: {text!r}")
        except openai.APITimeoutError as error:
            tally.record(f"seed {seed}: hung: {error!r}")
        except openai.APIConnectionError as error:
            tally.record_cut(f"seed {seed}: {error!r}")
        except openai.OpenAIError as error:
            tally.record(f"seed {seed}: {error!r}")


def _copy(client: openai.OpenAI, prompt: str, *, streams: bool) -> str:
    words: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 300, "temperature": 0}
    if not streams:
        return str(client.completions.create(**words).choices[0].text)
    chunks = client.completions.create(**words, stream=True)
    return "".join(chunk.choices[0].text for chunk in chunks)


def _ask_long(url: str, number: int, tally: Tally, stopping: threading.Event) -> None:
    client = openai.OpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=HUNG_SECONDS
    )
    for seed in itertools.count(number * 100_000):
        if stopping.is_set():
            return
        prompt, _ = make_prompt("copy", LONG_PROMPT_BYTES, seed)
        try:
            answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4)
            tally.record(None if answer.choices[0].text else f"seed {seed}: no text")
        except openai.OpenAIError as error:
            tally.record(f"seed {seed}: {error!r}")
