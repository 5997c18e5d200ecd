"""Real engines, killed in the middle of their streams: every client gets its whole answer."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.router import fakes
from tests.router.private_engines import KEY
from tests.runtime.launch import processes

pytestmark = pytest.mark.process

STREAMS = 8
FIRST_EVENTS = 5


def requests() -> Iterator[dict[str, Any]]:
    for seed in range(STREAMS):
        yield {
            "model": "tiny",
            "prompt": f"Story {seed}",
            "max_tokens": 700,
            "ignore_eos": True,
            "temperature": 0.0 if seed % 2 else 1.0,
            "presence_penalty": 0.5 if seed == 2 else 0.0,
            "seed": seed,
            "logprobs": 1 if seed > 5 else None,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


class Answer:
    """One stream, as it comes."""

    def __init__(self) -> None:
        self.text = ""
        self.scores: list[float] = []
        self.usage: Any = None
        self.rest: list[str] = []
        """What is neither text nor usage."""
        self.begun = asyncio.Event()

    async def read(self, client: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
        events = 0
        async with client.post(url + "/v1/completions", json=body) as response:
            async for line in response.content:
                self._take(line.decode().strip())
                events += 1
                if events > FIRST_EVENTS:
                    self.begun.set()

    def _take(self, line: str) -> None:
        if not line.startswith("data: {") or "error" in line:
            self.rest += [line] if line else []
            return
        event = json.loads(line.removeprefix("data: "))
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            self.text += choice["text"]
            self.scores += (choice.get("logprobs") or {}).get("token_logprobs", [])


def reading(
    answers: list[Answer], client: aiohttp.ClientSession, url: str
) -> list[asyncio.Task[None]]:
    return [
        asyncio.create_task(one.read(client, url, body))
        for one, body in zip(answers, requests(), strict=True)
    ]


def engine(stack: AsyncExitStack, folder: Path) -> processes.Process:
    """A whole engine with random weights, in float32, while it starts."""
    folder.mkdir()
    key = folder / "key"
    key.write_bytes(KEY)
    config = processes.write_config(
        folder, contextLength=1024, kvPoolTokens=8192, dtype="float32", handoverKeyFile=str(key)
    )
    return stack.enter_context(processes.running(processes.program(config)))


async def all_take_private_calls(client: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(processes.HANG_SECONDS):
        while True:
            async with client.get(url + "/load") as response:
                rows = (await response.json())["engines"]
            if all((row.get("report") or {}).get("privateCalls") for row in rows):
                return
            await asyncio.sleep(0.05)  # another process's reports


async def busy(client: aiohttp.ClientSession, url: str) -> list[int]:
    """How many requests each engine has."""
    async with client.get(url + "/load") as response:
        return [row["inflightRequests"] for row in (await response.json())["engines"]]


@pytest.mark.parametrize(
    "victims", ["the engine process", pytest.param("all", marks=pytest.mark.full)]
)
async def test_engines_killed_in_the_middle_cost_a_pause(tmp_path: Path, victims: str) -> None:
    async with AsyncExitStack() as stack:
        starting = [engine(stack, tmp_path / name) for name in ("a", "b")]
        urls = [await asyncio.to_thread(one.ready_url) for one in starting]
        key = str(tmp_path / "a" / "key")
        router = await stack.enter_async_context(fakes.running_router(*urls, handover_key_file=key))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await all_take_private_calls(client, router.metrics_url)
        expected = [Answer() for _ in range(STREAMS)]
        await asyncio.gather(*reading(expected, client, router.url))
        answers = [Answer() for _ in range(STREAMS)]
        tasks = reading(answers, client, router.url)
        async with asyncio.timeout(processes.HANG_SECONDS):
            await asyncio.gather(*(one.begun.wait() for one in answers))
            counts = await busy(client, router.metrics_url)
            lost = max(counts)
            kill(starting[counts.index(lost)], victims)
            await asyncio.gather(*tasks)
        for one, same in zip(answers, expected, strict=True):
            assert (one.text, one.usage, one.rest) == (same.text, same.usage, ["data: [DONE]"])
            assert one.scores == pytest.approx(same.scores, abs=1e-4)
        assert 0 < await resumed(client, router.metrics_url) <= lost


def kill(process: processes.Process, victims: str) -> None:
    every = [*processes.descendants(process.popen.pid), process.popen.pid]
    for pid in every if victims == "all" else [process.child("sluice_runtime.engine")]:
        os.kill(pid, signal.SIGKILL)


async def resumed(client: aiohttp.ClientSession, url: str) -> int:
    async with client.get(url + "/metrics") as response:
        text = await response.text()
    assert "sluice_router_resume_failures_total 0" in text
    found = re.findall(r"^sluice_router_streams_resumed_total\{.*\} (\d+)", text, re.MULTILINE)
    return sum(map(int, found))
