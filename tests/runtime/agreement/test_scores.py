"""Logprobs of answers and prompts are the oracle's, however a step is cut, shared or overlapped."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.wire.messages import Generate, Sampling

from tests.runtime.agreement.oracle import Oracle, PairOf
from tests.runtime.agreement.scores import check_answer
from tests.runtime.harness import Run, engine_config, generate, run_engine

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("transformers")]

SAMPLED = Sampling(temperature=1.3, top_p=0.9, seed=3, presence_penalty=1.0, logit_bias=[(9, 2.0)])


def requests_of(count: int, head: int, rest: int, answer: int) -> list[Generate]:
    """Some score their prompts, some their answers, some both, some nothing."""
    draw = random.Random(8)
    shared = [draw.randrange(256) for _ in range(head)]
    return [
        generate(
            f"r{index}",
            [*shared, *(draw.randrange(256) for _ in range(draw.randint(1, rest)))],
            draw.randint(0 if index % 3 == 0 else 1, answer),
            sampling=SAMPLED,
            logprobs=(-1, 0, 5)[index % 3],
            prompt_logprobs=(2, -1)[index % 2],
        )
        for index in range(count)
    ]


def check(oracle: Oracle, requests: Sequence[Generate], run: Run) -> None:
    for request in requests:
        deltas = [delta for delta in run.deltas if delta.request_id == request.request_id]
        check_answer(oracle, request, deltas)


CASES: dict[str, dict[str, Any]] = {
    "plain": {"chunk_size": -1, "mixed_chunk": False},
    "cut and mixed": {"chunk_size": 16},
    "cached": {"chunk_size": 64, "prefix_cache": True},
    "small": {"chunk_size": 32, "kv_pool_tokens": 256, "reserve_percent": 10},
}


@pytest.mark.parametrize("pool_tokens", [128, 4096])
def test_a_prompt_that_fills_the_context_is_scored(pair_of: PairOf, pool_tokens: int) -> None:
    folder, oracle = pair_of("qwen3")
    settings = {"context_length": 128, "kv_pool_tokens": pool_tokens, "chunk_size": 48}
    config = engine_config(str(folder), dtype="float32", page_size=16, **settings)
    draw = random.Random(9)
    prompt = [draw.randrange(256) for _ in range(128)]
    requests = [
        generate("full", prompt, 0, prompt_logprobs=2, sampling=SAMPLED, logprobs=1),
        generate("beside", prompt[:20], 5, logprobs=1),
    ]
    check(oracle, requests, run_engine(config, requests, hooks=EngineHooks()))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_scores_are_the_oracles(pair_of: PairOf, case: str, overlap: bool) -> None:
    folder, oracle = pair_of("qwen3")
    settings = {"prefix_cache": False, "kv_pool_tokens": 4096, **CASES[case]}
    config = engine_config(str(folder), dtype="float32", page_size=16, **settings)
    requests = requests_of(12, 8, 40, 110) if case == "small" else requests_of(12, 48, 90, 40)
    run = run_engine(config, requests, hooks=EngineHooks(poison_freed_pages=True), overlap=overlap)
    check(oracle, requests, run)
    assert (run.cuts > 0) == (case != "plain")
    assert (run.retractions > 0) == (case == "small")
    assert any(run.cached.values()) == (case == "cached")
