"""Two pools answer as one engine does that computes and decodes: over HTTP, through the router; one
trace tells of all steps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sluice_contract.config.tracing import RouterTracing

from tests.collector import Collector, Seen, collecting
from tests.disaggregated.asking import (
    Request,
    ask,
    ask_all,
    check,
    of_every_kind,
    task,
    text,
    texts,
)
from tests.disaggregated.engines import KEY, MODEL, EngineProcess
from tests.disaggregated.service import Service, running_service
from tests.router import fakes
from tests.runtime.launch.processes import until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("disaggregated")]

LENGTHS = [1, 2, 15, 16, 17, 255, 256, 257, 1000]
ENGINE = f"text_completion {MODEL}"
SPANS = {
    "sluice.request": ("sluice-router", None),
    "sluice.attempt": ("sluice-router", "sluice.request"),
    ENGINE: ("sluice-api", "sluice.attempt"),
    "sluice.prefill": ("sluice-engine", ENGINE),
    "sluice.transfer": ("sluice-engine", ENGINE),
    "sluice.decode": ("sluice-api", ENGINE),
}
"""Spans of one request: the process that tells of each, and what it is a part of."""
COPY = task("copy", 200, 3)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    engine = EngineProcess(tmp_path_factory.mktemp("mixed") / "engine", "mixed")
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def requests(lengths: list[int]) -> list[Request]:
    tasks = [task(kind, 120, seed) for kind in ("copy", "lookup", "add") for seed in (0, 1)]
    tasks += [task("copy", 512, 3), task("copy", 300, 4, chat=True), task("copy", 64, 5, n=2)]
    return tasks + [text(length, 0) for length in lengths] + of_every_kind()


@pytest.fixture(scope="module")
def expected(mixed: EngineProcess) -> dict[str, Any]:
    mixed.wait()
    asked = requests(LENGTHS)
    answers = ask_all(mixed.url, asked)
    return {request.name: answer for request, answer in zip(asked, answers, strict=True)}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module", params=[("Mooncake", 16), ("TCP", 1)], ids=["Mooncake", "TCP"])
def service(
    request: pytest.FixtureRequest,
    mixed: EngineProcess,
    collector: Collector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Service]:
    """That of TCP tells spans."""
    backend, page_size = request.param
    settings = {"kvTransfer": {"backend": backend}, "pageSize": page_size}
    settings["decode"] = {"kvPoolTokens": 3072}
    if backend == "TCP":
        settings["tracing"] = {"endpoint": collector.url}
    folder = tmp_path_factory.mktemp("service")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        with running_service(folder, **settings) as service:
            yield service


def test_the_answers_are_those_of_a_mixed_engine(
    service: Service, expected: dict[str, Any]
) -> None:
    asked, (decode,) = requests(LENGTHS), service.decodes
    read = []
    for again in asked, asked[::-1]:  # what was asked last is held when it is asked first
        before = decode.metric("sluice_handover_read_bytes_total")
        for request, answer in zip(again, ask_all(service.url, again), strict=True):
            check(request, answer, expected[request.name])
        service.idle()
        read.append(decode.metric("sluice_handover_read_bytes_total") - before)
    assert read[1] < read[0], "the decode engine holds a part of some prompts"
    assert decode.metric("sluice_handover_failures_total") == 0
    assert decode.metric("sluice_handover_recomputed_total") == 0


def test_a_stream_says_the_same(service: Service) -> None:
    for request in (task("copy", 200, 7), task("copy", 64, 8, chat=True)):
        check(request, ask(service.url, request, stream=True))


def test_what_decode_retracts_it_computes_again(service: Service, mixed: EngineProcess) -> None:
    """Its pool holds one of three whole; each may grow far behind what is kept free for it."""
    (decode,) = service.decodes
    asked = [text(64, seed, max_tokens=1500) for seed in range(3)]
    answers = ask_all(service.url, asked)
    assert decode.metric("sluice_handover_recomputed_total") >= 1
    for answer, alone in zip(answers, ask_all(mixed.url, asked), strict=True):
        assert texts(answer) == texts(alone)
    service.idle()


@pytest.mark.parametrize("service", [("TCP", 1)], ids=["TCP"], indirect=True)
async def test_every_step_of_a_request_is_a_span_of_its_trace(
    service: Service, collector: Collector, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(KEY)
    async with fakes.running_router(
        *(engine.url for engine in service.decodes),
        prefill_engines=tuple(engine.url for engine in service.prefills),
        handover_key_file=str(tmp_path / "key"),
        tracing=RouterTracing(endpoint=collector.url),
        upstream={"wait_for_engine_seconds": 30},
    ) as router:
        check(COPY, await asyncio.to_thread(ask, router.url, COPY))

    def of_the_trace() -> list[Seen]:
        traces = {span.trace_id for span in collector.named("sluice.request")}
        return [span for span in collector.spans if span.trace_id in traces]

    until(lambda: {span.name for span in of_the_trace()} >= SPANS.keys())
    spans = {span.name: span for span in of_the_trace()}
    assert len(spans) == len(of_the_trace())
    assert len({span.trace_id for span in spans.values()}) == 1
    for name, (process, parent) in SPANS.items():
        assert spans[name].process == process
        assert spans[name].parent_id == (spans[parent].span_id if parent else "")
    moments = [
        spans[ENGINE].seconds[0],
        spans["sluice.prefill"].seconds[1],
        spans["sluice.transfer"].seconds[1],
        spans["sluice.decode"].seconds[0],
        spans["sluice.decode"].seconds[1],
    ]
    assert moments == sorted(moments)
    assert spans["sluice.prefill"].attributes["sluice.prompt_tokens"] == len(COPY.body["prompt"])


@pytest.mark.full
@pytest.mark.parametrize("overlap", [False, True], ids=["sync", "overlap"])
@pytest.mark.parametrize("chunk_size", [16, 96, 2048, -1])
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("backend", ["Mooncake", "TCP"])
def test_they_are_for_all_settings_and_lengths(
    backend: str,
    page_size: int,
    chunk_size: int,
    overlap: bool,
    mixed: EngineProcess,
    tmp_path: Any,
) -> None:
    drawn = random.Random(f"{backend}/{page_size}/{chunk_size}/{overlap}")
    lengths = sorted(
        {1, 8000, *(drawn.randrange(1, 2000) for _ in range(6)), drawn.randrange(8000)}
    )
    asked = requests(lengths)
    mixed.wait()
    settings = {"pageSize": page_size, "chunkSize": chunk_size, "overlap": overlap}
    with running_service(tmp_path, kvTransfer={"backend": backend}, **settings) as service:
        for again in ask_all(service.url, asked), ask_all(service.url, asked):
            for request, answer, alone in zip(asked, again, ask_all(mixed.url, asked), strict=True):
                check(request, answer, alone)
        service.idle()
