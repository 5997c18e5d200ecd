"""Drawn answers on a GPU are those of a CPU: numbers depend on seed and position alone."""

from __future__ import annotations

import pytest
from sluice_runtime.wire.messages import Generate, Sampling

from tests.gpu.device import accelerator
from tests.runtime.harness import engine_config, generate, run_engine

pytestmark = pytest.mark.gpu

KINDS = {
    "plain": Sampling(temperature=1.0),
    "nucleus": Sampling(temperature=0.9, top_p=0.8),
    "top-k": Sampling(temperature=1.1, top_k=20),
    "least-share": Sampling(temperature=1.0, min_p=0.05),
    "penalised": Sampling(
        temperature=0.8, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.2
    ),
    "biased": Sampling(temperature=1.0, logit_bias=[(65, 3.0), (66, -5.0)]),
    "all": Sampling(
        temperature=0.7,
        top_p=0.9,
        top_k=30,
        min_p=0.01,
        presence_penalty=0.5,
        logit_bias=[(65, 2.0)],
    ),
    "greedy": Sampling(temperature=0.0, top_p=0.5),
}
SEEDS = range(6)
SAME = 0.9
"""Share of answers: where two tokens end at nearly the same number, rounding decides."""


def requests() -> list[Generate]:
    import msgspec

    return [
        generate(
            f"{kind}-{seed}",
            [seed + 1] * 20,
            12,
            sampling=msgspec.structs.replace(sampling, seed=seed),
        )
        for kind, sampling in KINDS.items()
        for seed in SEEDS
    ]


def test_the_same_tokens_are_drawn() -> None:
    settings = {"dtype": "float32", "kv_pool_tokens": 8192}
    uri = "dummy://qwen3-tiny"
    on_gpu = engine_config(uri, accelerator=accelerator(), **settings)
    there = run_engine(on_gpu, requests(), logits=False)
    here = run_engine(engine_config(uri, **settings), requests())
    for kind in KINDS:
        same = [there.tokens[f"{kind}-{seed}"] == here.tokens[f"{kind}-{seed}"] for seed in SEEDS]
        assert sum(same) >= SAME * len(same) - 1, f"{kind}: {sum(same)} of {len(same)}"
    every = [there.tokens[name] == here.tokens[name] for name in here.tokens]
    assert sum(every) >= SAME * len(every), f"{sum(every)} of {len(every)} answers are the same"
