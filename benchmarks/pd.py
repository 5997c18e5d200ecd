"""Two pools compared with the same engines mixed, for real.

One prefill and one decode engine with a router, and two mixed engines with a router. All are
processes of one thread, of the 33.6 M-parameter model of "CPU serving". They are there all the time
and take turns at the same requests: prompts and answers drawn with a seed, Poisson arrivals. Then
requests come one after another, to engines directly and through the router. Prints one JSON line a
figure.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from sluice_contract.wire.handover import PREFILL_HEADER, Bound, PrefillRef, signed_header
from sluice_contract.wire.load import LoadReport

from benchmarks.cpu_serving import write_model
from benchmarks.router import process
from benchmarks.startup import free_port, started_engine, wait_for

KEY = b"k" * 32
TOKENIZER = Path(__file__).parents[1] / "e2e/model/sluice-tiny"
PROMPT_TOKENS, ANSWER_TOKENS = (64, 1_024), (16, 96)
VOCABULARY = 200
"""Tokens that the tokenizer has."""
COMPLETIONS = "/v1/completions"
LETTER = 97
"""The only token that answers have: the engine would hold back tokens that are no UTF-8 yet."""


@dataclass(frozen=True)
class Asked:
    arrival_seconds: float
    prompt: list[int]
    answer_tokens: int


@dataclass(frozen=True)
class Seen:
    """One answer, in seconds."""

    first: float
    gaps: list[float]
    tokens: int
    ended: float
    """Time of the end, on the clock of the run."""


@dataclass(frozen=True)
class Fleet:
    """A router and its engines."""

    name: str
    router: str
    engines: tuple[str, ...]
    """URLs of the engines; the first engine is the one that answers requests."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=40, help="of each run")
    parser.add_argument("--rates", type=float, nargs="*", default=[2.0, 4.0], help="per second")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument(
        "--alone", type=int, default=60, help="requests one after another, each way"
    )
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        folder = Path(name)
        write_model(folder)
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(TOKENIZER / file, folder)
        runner.run(measure(folder, options))


async def measure(folder: Path, options: argparse.Namespace) -> None:
    connector = aiohttp.TCPConnector(limit=0)
    async with fleets(folder) as found, aiohttp.ClientSession(connector=connector) as client:
        for fleet in found:
            await play(client, fleet, requests(8, 8.0, seed=1_000))
        for rate in options.rates:
            seen: dict[str, list[list[Seen]]] = {fleet.name: [] for fleet in found}
            for number in range(options.rounds):
                for fleet in found if number % 2 else found[::-1]:
                    asked = requests(options.requests, rate, seed=number)
                    seen[fleet.name].append(await play(client, fleet, asked))
            report_rounds(rate, seen)
        await router_adds(client, found, options.alone)


def requests(count: int, rate: float, seed: int) -> list[Asked]:
    """Requests with tokens that differ between seeds and rates, so that no prefix is cached."""
    draw, now, made = random.Random(f"{seed}/{rate}"), 0.0, []
    for _ in range(count):
        prompt = [draw.randrange(VOCABULARY) for _ in range(draw.randint(*PROMPT_TOKENS))]
        made.append(Asked(now, prompt, draw.randint(*ANSWER_TOKENS)))
        now += draw.expovariate(rate)
    return made


async def play(client: aiohttp.ClientSession, fleet: Fleet, asked: Sequence[Asked]) -> list[Seen]:
    """Sends each request at its time; returns their answers."""
    began = time.perf_counter()

    async def one(request: Asked) -> Seen:
        await asyncio.sleep(request.arrival_seconds - (time.perf_counter() - began))
        return await answer(client, fleet.router, request, began)

    return await asyncio.gather(*(one(request) for request in asked))


def body_of(request: Asked) -> bytes:
    """The body of a request for a streamed completion."""
    fields = {
        "model": "m",
        "prompt": request.prompt,
        "max_tokens": request.answer_tokens,
        "ignore_eos": True,
        "temperature": 0,
        "logit_bias": {str(LETTER): 100},
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    return json.dumps(fields).encode()


async def answer(
    client: aiohttp.ClientSession,
    url: str,
    request: Asked,
    began: float,
    headers: dict[str, str] | None = None,
) -> Seen:
    sent, times, tokens = time.perf_counter(), [], 0
    async with client.post(
        f"{url}{COMPLETIONS}", data=body_of(request), headers=headers
    ) as response:
        if response.status != 200:
            raise SystemExit(f"{url}: {response.status}: {await response.text()}")
        async for line in response.content:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise SystemExit(f"{url}: {event['error']}")
                known = event["usage"]["completion_tokens"]
                times += [time.perf_counter()] * (known - tokens)
                tokens = known
    assert tokens == request.answer_tokens, f"{tokens} of {request.answer_tokens} tokens"
    gaps = [after - before for before, after in itertools.pairwise(times)]
    return Seen(times[0] - sent, gaps, tokens, times[-1] - began)


def report_rounds(rate: float, seen: dict[str, list[list[Seen]]]) -> None:
    for name, rounds in seen.items():
        all_seen = [one for each in rounds for one in each]
        firsts = [one.first for one in all_seen]
        gaps = [gap for one in all_seen for gap in one.gaps]
        rates = [
            sum(one.tokens for one in each) / max(one.ended for one in each) for each in rounds
        ]
        facts = {
            "ttft_p50_ms": 1000 * statistics.median(firsts),
            "ttft_p99_ms": 1000 * quantile(firsts, 99),
            "itl_p50_ms": 1000 * statistics.median(gaps),
            "itl_p99_ms": 1000 * quantile(gaps, 99),
            "itl_worst_ms": 1000 * max(gaps),
            "output_tokens_per_second": statistics.median(rates),
        }
        for figure, value in facts.items():
            report(figure, value, fleet=name, requests_per_second=rate)


def quantile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def router_adds(client: aiohttp.ClientSession, found: Sequence[Fleet], count: int) -> None:
    """Reports the time to the first token, directly and through the router, in turns."""
    for fleet in found:
        times: dict[str, list[float]] = {"direct": [], "router": []}
        for number, asked in enumerate(requests(2 * count, 1.0, seed=2_000)):
            way = "router" if number % 2 else "direct"
            short = Asked(0.0, asked.prompt[:64], 2)
            headers = None if way == "router" else direct_headers(fleet, short)
            url = fleet.router if way == "router" else fleet.engines[0]
            times[way].append((await answer(client, url, short, 0.0, headers)).first)
        medians = {way: 1000 * statistics.median(each) for way, each in times.items()}
        for way, value in medians.items():
            report("ttft_p50_ms_alone", value, fleet=fleet.name, way=way)
        report(
            "router_adds_to_ttft_p50_ms", medians["router"] - medians["direct"], fleet=fleet.name
        )


def direct_headers(fleet: Fleet, asked: Asked) -> dict[str, str] | None:
    """Headers with which the router would send a request to the decode engine."""
    if fleet.name == "mixed":
        return None
    with urllib.request.urlopen(f"{fleet.engines[1]}/load", timeout=5) as told:
        load = LoadReport.model_validate_json(told.read())
    assert load.bootstrap_port is not None
    prefill = PrefillRef(host="127.0.0.1", port=load.bootstrap_port, epoch=load.epoch)
    request_id = f"bench-{random.getrandbits(64):016x}"
    bound = Bound(COMPLETIONS, hashlib.sha256(body_of(asked)).hexdigest())
    signed = signed_header(KEY, prefill, request_id, time.time(), bound)
    return {PREFILL_HEADER: signed, "X-Request-Id": request_id}


def report(figure: str, value: float, **more: object) -> None:
    line = {"bench": "pd", "figure": figure, "value": round(value, 2), **more}
    print(json.dumps(line), flush=True)


@asynccontextmanager
async def fleets(folder: Path) -> AsyncIterator[list[Fleet]]:
    """Both fleets, each behind its router."""
    key = folder / "handover.key"
    key.write_bytes(KEY)
    async with AsyncExitStack() as stack:
        with ExitStack() as engines:
            start = [
                engines.enter_context(engine(folder, key, role))
                for role in ("mixed", "mixed", "decode", "prefill")
            ]
            for url, popen in start:
                wait_for(f"{url}/ready", popen)
            urls = [url for url, _ in start]
            mixed = await router(stack, "--engines", ",".join(urls[:2]))
            split = [
                "--engines",
                urls[2],
                "--prefill-engines",
                urls[3],
                "--handover-key-file",
                str(key),
            ]
            pair = await router(stack, *split)
            await asyncio.sleep(1.5)  # load reports are a second apart
            yield [
                Fleet("mixed", mixed, tuple(urls[:2])),
                Fleet("disaggregated", pair, tuple(urls[2:])),
            ]


async def router(stack: AsyncExitStack, *flags: str) -> str:
    port = free_port()
    command = [sys.executable, "-m", "sluice_router", *flags, "--port", str(port)]
    await stack.enter_async_context(process(command, port))
    return f"http://127.0.0.1:{port}"


@contextmanager
def engine(folder: Path, key: Path, role: str) -> Iterator[Any]:
    config: dict[str, Any] = {
        "model": {"uri": str(folder), "name": "m"},
        "role": role,
        "threads": 1,
        "kvPoolTokens": 32_768,
        "chunkSize": 512,
    }
    if role != "mixed":
        config |= {"handoverKeyFile": str(key), "kvTransfer": {"bootstrapPort": free_port()}}
    with started_engine(config) as found:
        yield found


if __name__ == "__main__":
    main()
