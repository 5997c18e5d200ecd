"""What a token costs between engine and client: CPU time of the API process and of the router.

A stand-in engine steps over the real link, at a pace that saturates the API process and at one that
does not. One client reads many chats at once: from the API process; through a router; through one
with the service's key; and from a bare Starlette server that writes the same bytes, an event a
token. They take turns. Prints one JSON line a figure, the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, fields
from http import HTTPStatus
from pathlib import Path
from statistics import median

import aiohttp
import uvicorn
import uvloop
from sluice_contract.wire.load import EngineFigures
from sluice_runtime.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    EngineReady,
    Generate,
    Heartbeat,
    Load,
    PlainTokens,
    StepResult,
    TokenDelta,
)
from sluice_runtime.wire.transport import EngineLink
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from benchmarks.router import DONE, START_SECONDS, Way, cpu_seconds, key_file, process
from benchmarks.startup import free_port

PACES = {"saturated": (0.001, 400), "unsaturated": (0.05, 200)}
"""Seconds of an engine's step, and tokens of a stream."""
PATH = "/v1/chat/completions"
READY = EngineReady(PROTOCOL_VERSION, "bench", 4096, 2**21, 16, 512, 512, 259, "bfloat16")
LOAD = Load(0.0, EngineFigures(kv_pages_total=2**17, kv_pages_free=2**17), 0.7, 0, 0, {})
EVENT = (
    b'data: {"id":"chatcmpl-%024x","object":"chat.completion.chunk","created":1790000000,'
    b'"model":"m","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,'
    b'"finish_reason":null}]}\n\n'
)


@dataclass(frozen=True)
class Measured:
    """Figures of one run."""

    cpu_microseconds_per_token: float
    tokens_per_second: float
    tokens_per_event: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=256, help="at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--python", default=sys.executable, help="whose Sluice is measured")
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--bare", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pace", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        stand_in_engine(options.engine, options.pace, options.streams)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.bare:
            runner.run(bare_server(options.bare, options.pace))
        else:
            runner.run(measure(options))


async def measure(options: argparse.Namespace) -> None:
    """Prints the figures of each pace as soon as they are known."""
    for load, (pace_seconds, tokens) in PACES.items():
        async with ways(options, pace_seconds) as all_ways:
            runs: dict[str, list[Measured]] = {way.name: [] for way in all_ways}
            for way in all_ways:
                await at_once(way, options.streams, 8)  # warms connections and code paths
            for _ in range(options.rounds):
                for way in all_ways:
                    runs[way.name].append(await at_once(way, options.streams, tokens))
        for name, measured in runs.items():
            for figure in fields(Measured):
                value = median(getattr(run, figure.name) for run in measured)
                line = {"bench": "http", "load": load, "way": name, "figure": figure.name}
                print(json.dumps({**line, "value": round(value, 2)}), flush=True)


async def at_once(way: Way, streams: int, tokens: int) -> Measured:
    """One run: all streams together, each of which must be whole."""
    cpu, began = cpu_seconds(way), time.perf_counter()
    events = await asyncio.gather(*(read_stream(way.url, tokens) for _ in range(streams)))
    seconds, total = time.perf_counter() - began, streams * tokens
    cpu = cpu_seconds(way) - cpu
    return Measured(cpu / total * 1e6, total / seconds, total / sum(events))


async def read_stream(url: str, tokens: int) -> int:
    """Reads one chat to its end; returns the number of events with tokens."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    message = {"role": "user", "content": "hello"}
    fields = {"model": "m", "messages": [message], "max_tokens": tokens, "stream": True}
    body = json.dumps(fields | {"ignore_eos": True}).encode()
    head = "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
    writer.write((head % (PATH, len(body))).encode() + body)
    events, tail = 0, b""
    while chunk := await reader.read(65536):
        events += chunk.count(b'{"content":"a')
        tail = (tail + chunk)[-64:]
    writer.close()
    if DONE not in tail:
        raise RuntimeError(f"{url} broke off: {tail.decode(errors='replace')}")
    return events


@asynccontextmanager
async def ways(options: argparse.Namespace, pace_seconds: float) -> AsyncIterator[list[Way]]:
    """The ways to the tokens of one pace, with their processes."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        key, endpoint = key_file(folder), f"ipc://{folder}/link"
        pace = ["--pace", str(pace_seconds), "--streams", str(options.streams)]

        async def started(name: str, port: int, *command: str) -> Way:
            pid = await stack.enter_async_context(process([*command], port))
            return Way(name, f"http://127.0.0.1:{port}", (pid,))

        api_port, bare_port = free_port(), free_port()
        api_command = ["-m", "sluice_runtime.server", "--config", api_file(folder, api_port, key)]
        api_command += ["--endpoint", endpoint]
        api = await started("API process", api_port, options.python, *api_command)
        engine = [sys.executable, "-m", "benchmarks.http", "--engine", endpoint, *pace]
        await stack.enter_async_context(process(engine, api_port))
        routes = [api]
        for name, flags in (("router", []), ("router with a key", ["--handover-key-file", key])):
            port = free_port()
            flags = ["-m", "sluice_router", "--port", str(port), "--engines", api.url, *flags]
            routes.append(await started(name, port, options.python, *flags))
        bare = [sys.executable, "-m", "benchmarks.http", "--bare", str(bare_port), *pace]
        routes.append(await started("bare Starlette", bare_port, *bare))
        for way, path in zip(routes, ("/ready", "/v1/models", "/v1/models"), strict=False):
            await until_ok(way.url + path)
        yield routes


def api_file(folder: str, port: int, key: str) -> str:
    """The configuration of the API process."""
    file, server = Path(folder, "engine.json"), {"host": "127.0.0.1", "port": port}
    model = {"uri": "dummy://qwen3-tiny", "name": "m"}
    file.write_text(json.dumps({"model": model, "server": server, "handoverKeyFile": key}))
    return str(file)


async def until_ok(url: str) -> None:
    """Waits until the page is there."""
    async with aiohttp.ClientSession() as client, asyncio.timeout(START_SECONDS):
        while True:
            async with client.get(url) as answer:
                if answer.status == HTTPStatus.OK:
                    return
            await asyncio.sleep(0.02)


def stand_in_engine(endpoint: str, pace_seconds: float, streams: int) -> None:
    """Sends each running request a token a step, once so many run."""
    link = EngineLink(endpoint)
    link.send(READY)
    left: dict[str, int] = {}
    step, stepping = 0, False
    while True:
        for message in link.poll(0.0 if stepping else 0.5):
            if isinstance(message, Generate):
                left[message.request_id] = message.max_tokens
            elif isinstance(message, Abort):
                left.pop(message.request_id, None)
        stepping = bool(left) and (stepping or len(left) >= streams)
        began, step = time.monotonic(), step + stepping
        ended = [TokenDelta(id_, (97,), "length") for id_, n in left.items() if n == 1]
        if stepping:
            left = {id_: n - 1 for id_, n in left.items() if n > 1}
            plain = PlainTokens([*left], [97] * len(left))
            times = began, pace_seconds, 0.0001
            link.send(StepResult(step, "DECODE", *times, ended, LOAD, plain=plain))
            time.sleep(max(0.0, began + pace_seconds - time.monotonic()))
        else:
            link.send(Heartbeat(LOAD))


async def bare_server(port: int, pace_seconds: float) -> None:
    """Streams an event a token, one a turn of a common clock, and nothing else."""
    turn = asyncio.Event()

    async def clock() -> None:
        nonlocal turn
        while True:
            await asyncio.sleep(pace_seconds)
            turn, ended = asyncio.Event(), turn
            ended.set()

    async def answer(request: Request) -> StreamingResponse:
        tokens = (await request.json())["max_tokens"]

        async def events() -> AsyncIterator[bytes]:
            for number in range(tokens):
                await turn.wait()
                yield EVENT % number
            yield DONE

        return StreamingResponse(events(), media_type="text/event-stream")

    app = Starlette(routes=[Route(PATH, answer, methods=["POST"])])
    config = uvicorn.Config(app, port=port, log_config=None, access_log=False, lifespan="off")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(clock())
        await uvicorn.Server(config).serve()


if __name__ == "__main__":
    main()
