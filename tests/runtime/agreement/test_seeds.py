"""A seed gives the same answer alone and in a crowd, however the engine is set up and loaded."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.wire.messages import Generate, Sampling

from tests.runtime.harness import Run, engine_config, generate, run_engine

pytestmark = pytest.mark.process

MODEL = "dummy://qwen3-tiny"

SAMPLINGS = [
    Sampling(seed=1),
    Sampling(temperature=1.4, top_k=20, seed=2),
    Sampling(temperature=0.8, top_p=0.8, min_p=0.02, seed=3),
    Sampling(temperature=1.2, presence_penalty=1.5, frequency_penalty=0.5, seed=4),
    Sampling(repetition_penalty=1.3, logit_bias=[(7, 3.0), (65, -100.0)], seed=5),
    Sampling(temperature=0.0, repetition_penalty=1.2),
]


def requests_of(answer: int, prompt: int) -> list[Generate]:
    """Two of each sampling; half of them stop at a token that comes soon, but not at once."""
    draw = random.Random(2)
    head = [draw.randrange(256) for _ in range(24)]
    requests = []
    for index, sampling in enumerate([*SAMPLINGS, *SAMPLINGS]):
        tokens = [*head, *(draw.randrange(256) for _ in range(draw.randint(1, prompt)))]
        stops = list(range(0, 250, 25)) if index % 2 else []
        sampling = msgspec.structs.replace(sampling, min_tokens=10 if stops else 0)
        request = generate(f"r{index}", tokens, answer, sampling=sampling, stop_token_ids=stops)
        requests.append(request)
    return requests


def run(requests: list[Generate], *, overlap: bool = False, **settings: Any) -> Run:
    defaults = {"dtype": "float32", "page_size": 16, "prefix_cache": False, "chunk_size": -1}
    config = engine_config(MODEL, **(defaults | settings))
    hooks = EngineHooks(poison_freed_pages=True)
    return run_engine(config, requests, hooks=hooks, overlap=overlap)


@pytest.fixture(scope="module")
def alone() -> dict[str, list[int]]:
    """Each answer of an engine that runs nothing else."""
    answers = [run([request]).tokens for request in requests_of(40, 60)]
    return {name: tokens for answer in answers for name, tokens in answer.items()}


def test_seeds_matter(alone: dict[str, list[int]]) -> None:
    same_prompt = requests_of(20, 1)[:1] * 2
    one, other = (
        run([generate("r", same_prompt[0].prompt_ids, 20, sampling=Sampling(seed=seed))])
        for seed in (1, 2)
    )
    assert one.tokens != other.tokens


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_size": -1, "mixed_chunk": False},
        {"chunk_size": 16},
        {"chunk_size": 32, "prefix_cache": True},
        {"chunk_size": 32, "kv_pool_tokens": 256, "reserve_percent": 10},
        {
            "chunk_size": 32,
            "kv_pool_tokens": 256,
            "reserve_percent": 10,
            "prefix_cache": True,
        },
    ],
    ids=["crowd", "cut and mixed", "cached", "retracted", "retracted and cached"],
)
def test_a_crowd_changes_no_answer(
    alone: dict[str, list[int]], settings: dict[str, Any], overlap: bool
) -> None:
    crowd = run(requests_of(40, 60), overlap=overlap, **settings)
    assert crowd.tokens == alone
    assert (crowd.cuts > 0) == (settings["chunk_size"] > 0)
    assert (crowd.retractions > 0) == ("kv_pool_tokens" in settings)
    assert (sum(crowd.cached.values()) > 0) == ("prefix_cache" in settings)
