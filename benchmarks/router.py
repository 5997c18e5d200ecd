"""What the router adds: time to first token, and 200 streams at once without loss.

A stand-in engine streams events at a fixed pace from its own process. The same requests go to it in
turns by several ways: directly; through the router; through one with the service's key, which takes
ids out of each event to resume with; through one that also names a prefill engine (two pools); and,
if it is installed (`--nginx` or on PATH), through nginx with buffering off. Prints one JSON line a
figure.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvloop
from aiohttp import web
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import KvFingerprint
from sluice_contract.wire.load import EngineFigures, LoadReport
from sluice_contract.wire.private_calls import (
    PRIVATE_HEADER,
    AnswerStart,
    EventComment,
    comment_line,
    split_body,
)

from benchmarks.startup import free_port

EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"%04d"}]}\n\n'
)
DONE = b"data: [DONE]\n\n"
START = comment_line(EventComment(AnswerStart("cmpl-1", 1, "ab" * 32, [4096], 400, "m1")))
FINGERPRINT = KvFingerprint(
    model="m", page_size_tokens=16, kv_dtype="bfloat16", tensor_parallel_size=1
)
HEADERS = {"Content-Type": "application/json"}
START_SECONDS = 20.0
NGINX = """
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 4096; }}
http {{
  access_log {folder}/access.log;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream engine {{ server 127.0.0.1:{engine}; keepalive 256; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 1h;
    }}
  }}
}}
"""


@dataclass(frozen=True)
class Way:
    """One way to the engine: its name, address and the processes that the bytes pass through."""

    name: str
    url: str
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stream:
    """One answered request, in seconds from its start."""

    first_seconds: float
    events: int
    whole: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=400, help="one after another, each way")
    parser.add_argument("--streams", type=int, default=200, help="at once, each way")
    parser.add_argument("--tokens", type=int, default=100, help="events of each of those")
    parser.add_argument("--pace", type=float, default=0.05, help="seconds between them")
    parser.add_argument("--nginx", default=shutil.which("nginx"), help="the program, if any")
    parser.add_argument("--engine", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--role", default=Role.MIXED, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if options.engine:
            runner.run(stand_in_engine(options.engine, options.pace, Role(options.role)))
        else:
            runner.run(measure(options))


async def measure(options: argparse.Namespace) -> None:
    """Prints every figure as soon as it is known."""
    connector = aiohttp.TCPConnector(limit=0)
    async with ways(options) as all_ways, aiohttp.ClientSession(connector=connector) as client:
        await one_after_another(client, all_ways, 20)  # warms connections and code paths
        alone = await one_after_another(client, all_ways, options.requests)
        direct = statistics.median(alone["direct"])
        for way in all_ways:
            median = statistics.median(alone[way.name])
            report("ttft_p50_milliseconds", way, median * 1000)
            if way.name != "direct":
                report("ttft_added_p50_milliseconds", way, (median - direct) * 1000)
                report("ttft_added_p99_milliseconds", way, p99_added(alone, way) * 1000)
        for way in all_ways:
            await at_once(client, way, options.streams, options.tokens)


async def one_after_another(
    client: aiohttp.ClientSession, all_ways: list[Way], requests: int
) -> dict[str, list[float]]:
    """Times to the first event. The ways take turns, so that noise hits all alike."""
    times: dict[str, list[float]] = {way.name: [] for way in all_ways}
    for _ in range(requests):
        for way in all_ways:
            times[way.name].append((await stream(client, way, tokens=1)).first_seconds)
    return times


def p99_added(alone: dict[str, list[float]], way: Way) -> float:
    """Seconds that a way adds to the 99th percentile."""
    return quantile99(alone[way.name]) - quantile99(alone["direct"])


def quantile99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


async def at_once(client: aiohttp.ClientSession, way: Way, streams: int, tokens: int) -> None:
    """Reports many streams together, of which none may lose an event, and the CPU time of the
    processes in between."""
    await asyncio.gather(*(stream(client, way, tokens=1) for _ in range(streams)))  # connections
    before = cpu_seconds(way)
    started = time.perf_counter()
    results = await asyncio.gather(*(stream(client, way, tokens) for _ in range(streams)))
    seconds = time.perf_counter() - started
    whole = sum(result.whole and result.events == tokens for result in results)
    report(f"of_{streams}_streams_whole", way, whole)
    report(f"ttft_p50_milliseconds_of_{streams}_at_once", way, 1000 * statistics.median(
        result.first_seconds for result in results
    ))  # fmt: skip
    report(f"seconds_of_{streams}_at_once", way, seconds)
    if way.pids:
        cpu = cpu_seconds(way) - before
        report("cpu_microseconds_per_event", way, cpu / (streams * tokens) * 1e6)
        report("resident_mebibytes", way, sum(resident_mebibytes(pid) for pid in way.pids))


async def stream(client: aiohttp.ClientSession, way: Way, tokens: int) -> Stream:
    started = time.perf_counter()
    body = json.dumps({"model": "m", "prompt": f"{tokens:06d}" + "x" * 400, "stream": True})
    async with client.post(way.url + "/v1/completions", data=body, headers=HEADERS) as response:
        first = await response.content.readany()
        first_seconds = time.perf_counter() - started
        received = first + await response.read()
    return Stream(first_seconds, received.count(b'"text"'), received.endswith(DONE))


def report(figure: str, way: Way, value: float) -> None:
    line = {"bench": "router", "way": way.name, "figure": figure, "value": round(value, 3)}
    print(json.dumps(line), flush=True)


@asynccontextmanager
async def ways(options: argparse.Namespace) -> AsyncIterator[list[Way]]:
    """The ways to the engine, with the processes in front of it."""
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        with_key = ["--handover-key-file", key_file(folder)]
        engines = {role: free_port() for role in Role}
        for role, port in engines.items():
            command = [sys.executable, "-m", "benchmarks.router", "--engine", str(port)]
            command += ["--role", role, "--pace", str(options.pace)]
            await stack.enter_async_context(process(command, port))
        urls = {role: f"http://127.0.0.1:{port}" for role, port in engines.items()}
        found = [Way("direct", urls[Role.MIXED])]
        one = ["--engines", urls[Role.MIXED]]
        two = ["--engines", urls[Role.DECODE], "--prefill-engines", urls[Role.PREFILL]]
        for name, flags in (
            ("router", one),
            ("router with a key", [*one, *with_key]),
            ("router of pairs", [*two, *with_key]),
        ):
            port = free_port()
            command = [sys.executable, "-m", "sluice_router", "--port", str(port), *flags]
            pid = await stack.enter_async_context(process(command, port))
            found.append(Way(name, f"http://127.0.0.1:{port}", (pid,)))
        if options.nginx:
            nginx = free_port()
            command = nginx_command(options.nginx, folder, engines[Role.MIXED], nginx)
            pid = await stack.enter_async_context(process(command, nginx))
            found.append(Way("nginx", f"http://127.0.0.1:{nginx}", (pid, *children(pid))))
        yield found


def key_file(folder: str) -> str:
    file = Path(folder, "key")
    file.write_bytes(b"k" * 32)
    return str(file)


def nginx_command(program: str, folder: str, engine_port: int, port: int) -> list[str]:
    """nginx in front of the engine, with everything it writes in `folder`."""
    file = Path(folder, "nginx.conf")
    file.write_text(NGINX.format(folder=folder, engine=engine_port, port=port))
    return [program, "-c", str(file), "-e", f"{folder}/error.log"]


@asynccontextmanager
async def process(command: list[str], port: int) -> AsyncIterator[int]:
    """A process that listens on `port`, for the length of a block."""
    null = asyncio.subprocess.DEVNULL
    running = await asyncio.create_subprocess_exec(*command, stdout=null, stderr=null)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await listens(port):  # noqa: ASYNC110 (another process)
                await asyncio.sleep(0.02)
        yield running.pid
    finally:
        running.terminate()
        await running.wait()


async def listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def children(pid: int) -> tuple[int, ...]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return tuple(int(word) for word in listed.split())


def cpu_seconds(way: Way) -> float:
    """User and system time of the way's processes so far."""
    ticks = 0
    for pid in way.pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mebibytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def stand_in_engine(port: int, pace_seconds: float, role: Role) -> None:
    """Streams as many events as the prompt's first digits say, at a pace, and with ids for routers
    that ask for these. A prefill engine is asked only for its load."""

    async def completion(request: web.Request) -> web.StreamResponse:
        body, private = await request.read(), PRIVATE_HEADER in request.headers
        count = int(json.loads(split_body(body)[1] if private else body)["prompt"][:6])
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(count):
            if number:
                await asyncio.sleep(pace_seconds)
            await response.write(comment(number) * private + EVENT % number)
        await response.write(DONE)
        return response

    async def load(request: web.Request) -> web.Response:
        return web.Response(text=idle_report(role))

    app = web.Application()
    app.add_routes([web.post("/v1/completions", completion), web.get("/load", load)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    await asyncio.Event().wait()


def comment(number: int) -> bytes:
    """The comment by which a router with a key learns the tokens of one event."""
    return comment_line(EventComment(c=[(0, [100_000 + number])])) if number else START


def idle_report(role: Role) -> str:
    report = LoadReport(
        role=role,
        bootstrap_port=8998 if role is Role.PREFILL else None,
        kv_fingerprint=FINGERPRINT,
        handover_version=1,
        epoch="bench",
        time_seconds=time.time(),
        draining=False,
        figures=EngineFigures(kv_pages_total=1, kv_pages_free=1),
        max_running_requests=256,
        max_queued_requests=4096,
        page_size_tokens=16,
        private_calls=True,
        answer_identity="m1",
    )
    return report.model_dump_json(by_alias=True)


if __name__ == "__main__":
    main()
