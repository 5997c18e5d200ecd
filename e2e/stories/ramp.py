"""Requests that come faster and faster, as their clients measure them, and the fleet that they
needed.

Arrivals are an open loop: no request waits for the answer to another. Knows no cluster.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import httpx
import openai

from e2e.model.tasks import make_prompt
from e2e.stories.service import MODEL

PROMPT_BYTES: Final = 32
HUNG_SECONDS: Final = 120
Sizes = Sequence[tuple[float, int]]
"""Sizes of a fleet: the time from which it has a number of engines, and the number."""


@dataclass(frozen=True)
class Ramp:
    """Poisson arrivals whose rate rises evenly; equal for equal seeds."""

    seconds: float
    first_rate: float
    """Requests a second at the beginning."""
    last_rate: float
    seed: int

    def arrivals(self) -> Iterator[float]:
        """Seconds after the beginning, in order. The gaps between expected counts are unit
        exponentials; `at` is the time at which a count is expected."""
        draw, expected = random.Random(self.seed), 0.0
        rise = (self.last_rate - self.first_rate) / self.seconds
        while True:
            expected += draw.expovariate(1.0)
            at = (math.sqrt(self.first_rate**2 + 2 * rise * expected) - self.first_rate) / rise
            if at >= self.seconds:
                return
            yield at


@dataclass(frozen=True)
class Answer:
    """Answer to one request; times in Unix seconds."""

    asked: float
    first: float
    """Time of the first token; the time of the end if there was none."""
    ended: float
    tokens: int
    text: str = ""
    error: str = ""

    @property
    def ttft_seconds(self) -> float:
        return self.first - self.asked

    @property
    def itl_seconds(self) -> float:
        """The mean time between two tokens."""
        return (self.ended - self.first) / max(1, self.tokens - 1)


def answers(url: str, ramp: Ramp, tokens: int) -> list[Answer]:
    """Answers to all requests of the ramp, each of `tokens` tokens."""
    return asyncio.run(_answers(url, ramp, tokens))


async def _answers(url: str, ramp: Ramp, tokens: int) -> list[Answer]:
    began = time.monotonic()
    async with client_of(url) as client, asyncio.TaskGroup() as group:
        asked = []
        for seed, at in enumerate(ramp.arrivals()):
            await asyncio.sleep(began + at - time.monotonic())
            prompt, _ = make_prompt("copy", PROMPT_BYTES, seed)
            words = {"prompt": prompt, "max_tokens": tokens, "extra_body": {"ignore_eos": True}}
            asked.append(group.create_task(ask(client, words)))
    return [task.result() for task in asked]


def client_of(url: str) -> openai.AsyncOpenAI:
    """A client without retries."""
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=HUNG_SECONDS
    )


async def ask(client: openai.AsyncOpenAI, words: dict[str, Any]) -> Answer:
    """The answer to one request, as a stream."""
    asked, first, counted, text = time.time(), None, 0, ""
    ended = asked
    try:
        chunks = await client.completions.create(
            model=MODEL, temperature=0, stream=True, stream_options={"include_usage": True}, **words
        )
        async for chunk in chunks:
            if chunk.choices:
                ended = time.time()
                first = first or ended
                text += chunk.choices[0].text
            counted = chunk.usage.completion_tokens if chunk.usage else counted
    except (openai.OpenAIError, httpx.HTTPError) as error:
        return Answer(asked, first or time.time(), time.time(), counted, text, repr(error))
    return Answer(asked, first or time.time(), ended, counted, text)


class Hindsight:
    """The engines that the requests needed, by the times that their clients measured."""

    def __init__(self, asked: Sequence[Answer], rows: int, start_seconds: float) -> None:
        """`rows`: requests that an engine holds at once; `start_seconds`: seconds of an engine's
        start."""
        self._asked = asked
        self._rows = rows
        self._start_seconds = start_seconds
        self._begun = [answer.asked for answer in asked]
        self.began = self._begun[0]
        self.ended = max(answer.ended for answer in asked)

    def plan(self, at: float, hold_seconds: float = 0.0) -> int:
        """Fewest engines, at least 1, that hold all requests at once from `hold_seconds` before
        `at` until the length of a start after it. The maximum is at the beginning of that time, or
        when a request comes."""
        since, until = at - hold_seconds, at + self._start_seconds
        moments = [
            since,
            *(answer.asked for answer in self._asked if since < answer.asked <= until),
        ]
        held = (sum(answer.asked <= at < answer.ended for answer in self._asked) for at in moments)
        return max(1, math.ceil(max(held) / self._rows))

    def seconds(self) -> list[float]:
        """Each second of the ramp and of the answers after it."""
        return [self.began + second for second in range(int(self.ended - self.began))]

    def plans(self) -> Sizes:
        """The plan by time."""
        planned = [(at, self.plan(at)) for at in self.seconds()]
        return [planned[0], *(new for old, new in pairwise(planned) if new[1] != old[1])]

    def beyond(self, sizes: Sizes, more: int, hold_seconds: float) -> list[tuple[int, int, int]]:
        """Seconds of the ramp at which there were more than `more` engines above the plan, each
        with the engines and the plan. For a moment at which the fleet grows, the plan only looks
        ahead."""
        grown = [(at, engines, 0.0) for (_, old), (at, engines) in pairwise(sizes) if engines > old]
        always = [(at, size_at(sizes, at), hold_seconds) for at in self.seconds()]
        compared = [(at, engines, self.plan(at, hold)) for at, engines, hold in grown + always]
        return [
            (int(at - self.began), engines, plan)
            for at, engines, plan in compared
            if engines > plan + more
        ]


def size_at(sizes: Sizes, at: float) -> int:
    """Engines at a moment."""
    return [engines for since, engines in sizes if since <= at][-1]
