"""Logprobs of answers and prompts are the oracle's, however a step is cut, shared or overlapped."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.messages import Generate, Sampling, TokenLogprob

from tests.runtime.agreement.oracle import Oracle, PairOf, tolerance
from tests.runtime.harness import Run, engine_config, generate, run_engine

pytestmark = pytest.mark.xdist_group("transformers")

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
        answer = run.tokens[request.request_id]
        tokens = [*request.prompt_ids, *answer]
        logits = oracle.logits(tokens, len(tokens))
        wanted, within = torch.log_softmax(logits, -1), tolerance(logits)
        prompt = len(request.prompt_ids)
        scores = [score for delta in deltas for score in delta.logprobs]
        assert len(scores) == (len(answer) if request.logprobs >= 0 else 0)
        check_scores(scores, wanted[prompt - 1 :], answer, request.logprobs, within)
        told = [d.prompt_logprobs for d in deltas if d.prompt_logprobs is not None]
        assert len(told) == (request.prompt_logprobs >= 0)
        for prompt_scores in told:
            assert len(prompt_scores) == prompt - 1
            check_scores(prompt_scores, wanted, tokens[1:], request.prompt_logprobs, within)


def check_scores(
    scores: Sequence[TokenLogprob],
    wanted: torch.Tensor,
    tokens: Sequence[int],
    top: int,
    within: float,
) -> None:
    for score, line, token in zip(scores, wanted, tokens, strict=False):
        assert score.token_id == token
        assert score.logprob == pytest.approx(float(line[token]), abs=within)
        better = (line > line[token] + within).sum(), (line > line[token] - within).sum()
        assert better[0] < score.rank <= better[1] + 1
        best = line.topk(top).values.tolist()
        assert [value for _, value in score.top] == pytest.approx(best, abs=within)


CASES: dict[str, dict[str, Any]] = {
    "plain": {"chunk_size": -1, "mixed_chunk": False},
    "cut and mixed": {"chunk_size": 16},
    "cached": {"chunk_size": 64, "prefix_cache": True},
    "small": {"chunk_size": 32, "kv_pool_tokens": 256, "schedule_conservativeness": 0.1},
}


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
