"""An answer that one engine began and another one finished is the answer of one engine.

The first engine is aborted after k tokens; the second one, set up otherwise, gets these ids.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.server.sampling_plan import for_choice
from sluice_runtime.wire.messages import Generate, Sampling, TokenLogprob

from tests.runtime.harness import Run, engine_config, generate, run_engine

pytestmark = pytest.mark.process

ANSWER = 24
SAMPLINGS = {
    "greedy": Sampling(temperature=0.0),
    "seeded": Sampling(seed=1),
    "second choice": for_choice(Sampling(seed=1), 1),
    "restricted": Sampling(temperature=1.4, top_k=20, top_p=0.9, min_p=0.01, seed=2),
    "penalties": Sampling(temperature=1.2, presence_penalty=1.5, frequency_penalty=0.5, seed=4),
    "repetition": Sampling(temperature=0.0, repetition_penalty=1.3, logit_bias=[(7, 3.0)]),
    "late stop": Sampling(temperature=1.3, min_tokens=15, seed=6),
}
CUTS = (1, 2, 15, 16, 17, ANSWER - 1)


def requests() -> list[Generate]:
    prompt = [(7 * place) % 250 for place in range(37)]
    return [
        generate(
            name,
            prompt,
            ANSWER,
            sampling=sampling,
            stop_token_ids=list(range(0, 250, 5)) if sampling.min_tokens else [],
            logprobs=2,
            prompt_logprobs=1,
        )
        for name, sampling in SAMPLINGS.items()
    ]


def run(asked: list[Generate], *, overlap: bool = False, **settings: Any) -> Run:
    defaults = {"dtype": "float32", "page_size": 16, "prefix_cache": False, "chunk_size": -1}
    config = engine_config("dummy://qwen3-tiny", **(defaults | settings))
    return run_engine(config, asked, hooks=EngineHooks(poison_freed_pages=True), overlap=overlap)


def scores(run: Run, name: str) -> list[TokenLogprob]:
    return [one for d in run.deltas if d.request_id == name for one in d.logprobs]


@pytest.fixture(scope="module")
def whole() -> Run:
    return run(requests())


@pytest.mark.parametrize(
    ("overlap", "settings"),
    [
        (False, {}),
        (True, {"prefix_cache": True, "chunk_size": 16}),
        (True, {"page_size": 1, "kv_pool_tokens": 300, "reserve_percent": 5}),
    ],
    ids=["plain", "cached and chunked", "short of pages"],
)
def test_answers_go_on_as_they_would_have(
    whole: Run, overlap: bool, settings: dict[str, Any]
) -> None:
    resumed = [
        msgspec.structs.replace(
            asked,
            request_id=f"{asked.request_id}/{cut}",
            generated_ids=whole.tokens[asked.request_id][:cut],
        )
        for asked in requests()
        for cut in CUTS
        if cut < len(whole.tokens[asked.request_id])
    ]
    assert len(resumed) > 5 * len(CUTS)
    second = run(resumed, overlap=overlap, **settings)
    assert (second.retractions > 0) == ("kv_pool_tokens" in settings)
    for one in resumed:
        name, cut = one.request_id.split("/")[0], len(one.generated_ids)
        assert second.tokens[one.request_id] == whole.tokens[name][cut:], one.request_id
        (end,), (expected,) = second.terminals[one.request_id], whole.terminals[name]
        assert end.finish_reason == expected.finish_reason
        told, before = scores(second, one.request_id), scores(whole, name)[cut:]
        assert [score.token_id for score in told] == [score.token_id for score in before]
        assert [score.rank for score in told] == [score.rank for score in before]
        for score, other in zip(told, before, strict=True):
            assert score.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert all(delta.prompt_logprobs is None for delta in second.deltas)
