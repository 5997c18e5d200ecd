"""Honest tenants of a router: short streamed chats, one after the other, and what each tenant saw.

A chat has one right answer, so an answer that breaks off or goes on wrongly is a failure. Knows no
attack.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from tests.disaggregated.asking import RIGHT_SEEDS, Request, task

LENGTHS: Final = (32, 64, 128)
"""Tokens of an answer."""
PAUSE_SECONDS: Final = (0.5, 1.5)
"""Between two chats of a tenant, at least and at most."""
CHAT_SECONDS: Final = 90.0
MAX_TRIES: Final = 5


@dataclass
class Seen:
    """By all tenants, in one phase."""

    right: int = 0
    refused: int = 0
    """Answers 429 and 503 with Retry-After, after which the chat was asked again."""
    reconnected: int = 0
    """Connections that were closed before an answer began, after which it was asked again."""
    failed: list[str] = field(default_factory=list)
    first_seconds: list[float] = field(default_factory=list)
    """From the request to the first event."""
    gap_seconds: list[float] = field(default_factory=list)
    """Between two events of one answer."""


@asynccontextmanager
async def chatting(url: str, keys: Mapping[str, str]) -> AsyncIterator[Seen]:
    """Every tenant chats until the block ends, and then to the end of its answer."""
    seen, stopping = Seen(), asyncio.Event()
    tasks = [asyncio.create_task(_chat(url, *tenant, seen, stopping)) for tenant in keys.items()]
    try:
        yield seen
    finally:
        stopping.set()
        await asyncio.gather(*tasks)


async def _chat(url: str, tenant: str, key: str, seen: Seen, stopping: asyncio.Event) -> None:
    rng = random.Random(tenant)
    headers = {"Authorization": f"Bearer {key}"}
    timeout = aiohttp.ClientTimeout(total=CHAT_SECONDS)
    async with aiohttp.ClientSession(url, headers=headers, timeout=timeout) as client:
        while not stopping.is_set():
            asked = task("copy", rng.choice(LENGTHS), rng.choice(RIGHT_SEEDS), chat=True)
            if wrong := await _outcome(client, asked, seen):
                seen.failed.append(f"{tenant}: {asked.name}: {wrong}")
            else:
                seen.right += 1
            try:
                await asyncio.wait_for(stopping.wait(), rng.uniform(*PAUSE_SECONDS))
            except TimeoutError:
                continue


async def _outcome(client: aiohttp.ClientSession, asked: Request, seen: Seen) -> str:
    """What was wrong; nothing, if it was answered rightly in the end."""
    problem = ""
    for _ in range(MAX_TRIES):
        answer = _Answer()
        try:
            async with client.post(asked.path, json={**asked.body, "stream": True}) as response:
                retry = response.headers.get("Retry-After")
                if response.status in (429, 503) and retry is not None:
                    seen.refused += 1
                    problem = f"{response.status} {await response.text()}"
                    await asyncio.sleep(float(retry))
                    continue
                if response.status != 200:
                    return f"{response.status} {await response.text()}"
                return await answer.read(response, asked, seen)
        except (aiohttp.ClientConnectionError, OSError) as error:
            problem = repr(error)
            if answer.began or isinstance(error, TimeoutError):
                return f"{problem} after {answer.text!r}"
            seen.reconnected += 1
        except aiohttp.ClientError as error:
            return repr(error)
    return f"{MAX_TRIES} times refused: {problem}"


class _Answer:
    """One stream, as it comes."""

    def __init__(self) -> None:
        self.began = False
        self.text = ""
        self._asked = time.monotonic()

    async def read(self, response: aiohttp.ClientResponse, asked: Request, seen: Seen) -> str:
        """To its end; what is wrong with it."""
        self.began, last, before = True, "", None
        async for line in response.content:
            last = line.decode().strip().removeprefix("data: ") or last
            if not line.startswith(b"data: {"):
                continue
            now = time.monotonic()
            if before is None:
                seen.first_seconds.append(now - self._asked)
            else:
                seen.gap_seconds.append(now - before)
            before = now
            choices = json.loads(last).get("choices") or [{}]
            self.text += choices[0].get("delta", {}).get("content") or ""
        if last != "[DONE]":
            return f"ended with {last}"
        return "" if self.text == asked.answer else f"{self.text!r} for {asked.answer!r}"
