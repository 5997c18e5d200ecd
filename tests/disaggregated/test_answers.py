"""Two pools answer as one engine does that computes and decodes: over HTTP, through the router."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

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
from tests.disaggregated.engines import EngineProcess
from tests.disaggregated.service import Service, running_service

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("disaggregated")]

LENGTHS = [1, 2, 15, 16, 17, 255, 256, 257, 1000]


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


@pytest.fixture(scope="module", params=[("Mooncake", 16), ("TCP", 1)], ids=["Mooncake", "TCP"])
def service(
    request: pytest.FixtureRequest, mixed: EngineProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    backend, page_size = request.param
    settings = {"kvTransfer": {"backend": backend}, "pageSize": page_size}
    settings["decode"] = {"kvPoolTokens": 3072}
    with running_service(tmp_path_factory.mktemp("service"), **settings) as service:
        yield service


def test_the_answers_are_those_of_a_mixed_engine(
    service: Service, expected: dict[str, Any]
) -> None:
    asked, (decode,) = requests(LENGTHS), service.decodes
    read = []
    for _ in range(2):
        before = decode.metric("sluice_handover_read_bytes_total")
        for request, answer in zip(asked, ask_all(service.url, asked), strict=True):
            check(request, answer, expected[request.name])
        service.idle()
        read.append(decode.metric("sluice_handover_read_bytes_total") - before)
    assert read[1] < read[0], "the decode engine holds a part of most prompts"
    assert decode.metric("sluice_handover_failures_total") == 0
    assert decode.metric("sluice_handover_recomputed_total") == 0


def test_a_stream_says_the_same(service: Service) -> None:
    for request in (task("copy", 200, 7), task("copy", 64, 8, chat=True)):
        check(request, ask(service.url, request, stream=True))


def test_what_decode_retracts_it_computes_again(service: Service, mixed: EngineProcess) -> None:
    """Its pool holds two of three; each may grow far behind what is kept free for it."""
    (decode,) = service.decodes
    asked = [text(64, seed, max_tokens=1200) for seed in range(3)]
    answers = ask_all(service.url, asked)
    assert decode.metric("sluice_handover_recomputed_total") >= 1
    for answer, alone in zip(answers, ask_all(mixed.url, asked), strict=True):
        assert texts(answer) == texts(alone)
    service.idle()


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
