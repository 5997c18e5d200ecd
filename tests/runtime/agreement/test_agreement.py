"""The engine agrees with transformers, however a step is cut, mixed or retracted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from sluice_runtime.engine.build import EngineHooks

from tests.runtime.agreement.oracle import assert_agrees, load_oracle, write_model
from tests.runtime.harness import engine_config, generate, run_engine


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = write_model(tmp_path_factory.mktemp("qwen3"), "qwen3")
    return folder, load_oracle(folder)


def requests_of(count: int, longest: int, answer: int) -> list[Any]:
    draw = random.Random(11)
    return [
        generate(
            f"r{index}",
            [draw.randrange(256) for _ in range(draw.randint(1, longest))],
            draw.randint(1, answer),
        )
        for index in range(count)
    ]


def test_one_request(qwen3: tuple[Path, Any]) -> None:
    folder, oracle = qwen3
    requests = requests_of(1, 40, 12)
    run = run_engine(engine_config(str(folder), dtype="float32"), requests)
    assert assert_agrees(oracle, requests, run) > 0


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("chunk_size", [16, 64, -1])
@pytest.mark.parametrize("mixed", [True, False])
def test_chunks_and_mixing_do_not_change_answers(
    qwen3: tuple[Path, Any], page_size: int, chunk_size: int, mixed: bool
) -> None:
    folder, oracle = qwen3
    requests = requests_of(16, 120, 24)
    config = engine_config(
        str(folder), dtype="float32", page_size=page_size, chunk_size=chunk_size, mixed_chunk=mixed
    )
    pages = config.kv_pool_tokens // page_size
    order = random.Random(3).sample(range(pages), pages)
    run = run_engine(config, requests, hooks=EngineHooks(order, poison_freed_pages=True))
    assert assert_agrees(oracle, requests, run) > 100
    assert (run.cuts > 0) == (chunk_size > 0)
    assert (run.modes["MIXED"] > 0) == mixed


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_pool_smaller_than_demand(qwen3: tuple[Path, Any], page_size: int) -> None:
    folder, oracle = qwen3
    requests = requests_of(16, 60, 120)
    config = engine_config(
        str(folder),
        dtype="float32",
        page_size=page_size,
        chunk_size=32,
        kv_pool_tokens=256,
        schedule_conservativeness=0.1,
    )
    order = random.Random(3).sample(range(256 // page_size), 256 // page_size)
    run = run_engine(config, requests, hooks=EngineHooks(order, poison_freed_pages=True))
    assert assert_agrees(oracle, requests, run) > 100
    assert run.retractions > 0
    assert run.cuts > 0
    assert run.modes["MIXED"] > 0
