"""A whole engine on flashinfer's wrappers and graphs answers as it does in plain torch.

Chunks, mixed steps, retractions, rows used again, graphs of padded steps: all on one pool, with
freed pages poisoned. The kernels are in torch, and graphs are recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sluice_runtime.engine.build import EngineHooks
from sluice_runtime.scheduler.pacing import LayerSplit
from sluice_runtime.wire.messages import Generate, Sampling

from tests.runtime.engine.late_device import LateDevice
from tests.runtime.harness import Run, engine_config, generate, run_engine
from tests.runtime.layers.flashinfer_backend import engines_with_graphs

REQUESTS = [
    generate(
        f"r{i}",
        range(i, i + prompt),
        answer,
        sampling=Sampling(temperature=1.0, seed=i),
        credit_tokens=64,
    )
    for i, (prompt, answer) in enumerate([(30, 42), (3, 39), (50, 34), (1, 44), (17, 26), (40, 40)])
]


KINDS = [
    Sampling(temperature=0.0),
    Sampling(temperature=1.1, top_p=0.8, top_k=40, seed=11),
    Sampling(temperature=0.9, min_p=0.05, seed=12),
]
SPECIAL = [
    Sampling(temperature=1.0, presence_penalty=0.5, seed=13),
    Sampling(temperature=1.0, logit_bias=[(65, 3.0)], seed=14),
]


def plain_then_special() -> list[Generate]:
    """Requests that graphs can sample, then some that they cannot, beside the last of those."""
    first = [generate(f"k{i}", [i + 1] * 5, 30, sampling=each) for i, each in enumerate(KINDS)]
    second = [generate(f"s{i}", [i + 1] * 3, 9, sampling=each) for i, each in enumerate(SPECIAL)]
    scored = generate("scored", [9] * 4, 8, sampling=Sampling(seed=15), logprobs=2)
    return [*REQUESTS, *first, *second, scored]


def answered(requests: Sequence[Generate] = REQUESTS, **settings: Any) -> Run:
    config = engine_config(
        "dummy://qwen3-tiny",
        dtype="float32",
        kv_pool_tokens=160,
        chunk_size=24,
        page_size=8,
        reserve_percent=10,
        attention_backend="torch",
    )
    return run_engine(config, requests, **settings)


@pytest.fixture
def on_flashinfer(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Engines built from its call on compute with flashinfer and graphs: see
    `engines_with_graphs`."""
    return lambda: engines_with_graphs(monkeypatch)


@pytest.mark.process
@pytest.mark.parametrize("overlap", [False, True])
def test_answers_are_those_of_plain_torch(
    overlap: bool, on_flashinfer: Callable[[], list[int]]
) -> None:
    wanted = answered()
    replays = on_flashinfer()
    hooks = EngineHooks(poison_freed_pages=True, device=LateDevice() if overlap else None)
    seen = answered(hooks=hooks, overlap=overlap)
    assert seen.tokens == wanted.tokens
    assert seen.modes["MIXED"] > 0
    assert 0 < len(replays) <= seen.modes["DECODE"]
    assert seen.retractions > 0
    assert (seen.launched_ahead > 0) == overlap


@pytest.mark.process
@pytest.mark.parametrize("overlap", [False, True])
def test_answers_are_the_same_where_graphs_sample(
    overlap: bool, on_flashinfer: Callable[[], list[int]]
) -> None:
    """Steps go from graphs that sample to those that do not and back, as rows come and go."""
    requests = plain_then_special()
    wanted = answered(requests)
    replays = on_flashinfer()
    hooks = EngineHooks(poison_freed_pages=True, device=LateDevice() if overlap else None)
    seen = answered(requests, hooks=hooks, overlap=overlap, logits=False)
    assert seen.tokens == wanted.tokens
    assert seen.retractions > 0
    sampled = len(replays) - seen.graph_steps
    assert 0 < sampled < seen.graph_steps


@pytest.mark.process
@pytest.mark.parametrize("overlap", [False, True])
def test_groups_of_layers_are_computed_beside_graphs(
    overlap: bool, on_flashinfer: Callable[[], list[int]]
) -> None:
    wanted = answered()
    replays = on_flashinfer()
    hooks = EngineHooks(poison_freed_pages=True, device=LateDevice() if overlap else None)
    seen = answered(hooks=hooks, overlap=overlap, split=LayerSplit(16, 1))
    assert seen.tokens == wanted.tokens
    assert seen.modes["SPLIT_PREFILL"] > 0
    assert len(replays) > seen.modes["DECODE"] / 2
