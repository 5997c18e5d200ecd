"""A whole engine, as `python -m sluice_runtime` runs it: how long its start takes by phases, with
weights of Qwen3-0.6B's shape on this disk, and the workload "offline" as streams over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from sluice_contract.config.engine import EngineConfig, render_engine_config
from sluice_simulator.percentiles import spread

from benchmarks.gpu.engines import DEFAULTS, SHAPES, accelerator, told
from benchmarks.gpu.offline import REQUESTS, SHAPE, lengths
from benchmarks.startup import start_phases, started_engine, wait_for, write_tokenizer
from benchmarks.turns import scaled

MODEL = "m"
HEAD = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n"
SERVER_SENT, DONE = b"data: {", b"data: [DONE]"


@dataclass(frozen=True)
class Stream:
    """Seconds of one stream: from the request to its first event, and between its events."""

    first: float
    gaps: list[float]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        sizes = {"accelerator": accelerator(), "max_running_requests": REQUESTS}
        config = EngineConfig.model_validate(
            {"model": {"uri": folder, "name": MODEL}, **DEFAULTS, **sizes}
        )
        began = time.monotonic()
        with started_engine(json.loads(render_engine_config(config)), None) as (url, process):
            told("start.ready", wait_for(f"{url}/ready", process) - began, "s")
            for phase, seconds in start_phases(url).items():
                told(f"start.{phase}", seconds, "s")
            asyncio.run(at_once(url, [(64, 8)] * scaled(32)))
            serve(
                url,
                [(scaled(prompt), scaled(answer)) for prompt, answer in lengths(scaled(REQUESTS))],
            )


def serve(url: str, requests: Sequence[tuple[int, int]]) -> None:
    """Reports the figures of requests of (prompt, answer) tokens."""
    began = time.perf_counter()
    streams = asyncio.run(at_once(url, requests))
    seconds = time.perf_counter() - began
    told("http", sum(answer for _, answer in requests) / seconds, "output tokens/s")
    told("http.ttft_p50", spread([stream.first for stream in streams]).p50, "s, all there at once")
    told("http.event_gap_p50", spread([gap for stream in streams for gap in stream.gaps]).p50, "s")


async def at_once(url: str, requests: Sequence[tuple[int, int]]) -> list[Stream]:
    """Streams of all requests, read to their ends."""
    return await asyncio.gather(
        *(read(url, number, *request) for number, request in enumerate(requests))
    )


async def read(url: str, number: int, prompt: int, answer: int) -> Stream:
    """Reads one completion of `answer` tokens."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    ids = random.Random(number).choices(range(SHAPES[SHAPE]["vocab_size"]), k=prompt)
    sampling = {"temperature": 0.6, "ignore_eos": True, "max_tokens": answer, "stream": True}
    body = json.dumps({"model": MODEL, "prompt": ids, **sampling}).encode()
    began = time.perf_counter()
    writer.write(HEAD.format(len(body)).encode() + body)
    times, tail = [began], b""
    while chunk := await reader.read(65536):
        times += [time.perf_counter()] * chunk.count(SERVER_SENT)
        tail = (tail + chunk)[-256:]
    writer.close()
    if DONE not in tail:
        raise RuntimeError(f"a stream broke off: {tail.decode(errors='replace')}")
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return Stream(gaps[0], gaps[1:])


def write_model(folder: Path) -> None:
    """Writes random weights of SHAPE, and a tokenizer with as many tokens."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape: dict[str, Any] = dict(SHAPES[SHAPE])
    config = AutoConfig.for_model(**shape)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder, shape["vocab_size"])


if __name__ == "__main__":
    main()
