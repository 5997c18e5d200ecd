"""The engine agrees with transformers, however a step is cut, mixed or retracted."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any, Final

import pytest
from sluice_contract.config.engine import AttentionBackend

from e2e.model.tasks import make_prompt
from tests.runtime.agreement.cases import Case, check, random_requests, repeating_requests
from tests.runtime.agreement.oracle import KINDS, PairOf
from tests.runtime.harness import generate

# With several workers one of them imports transformers and makes the models, and no other.
pytestmark = pytest.mark.xdist_group("transformers")

QUICK = [
    Case(page_size=1, chunk_size=16, overlap=True),
    Case(backend="torch", prefix_cache=False),
    Case(chunk_size=16, split=(32, 1)),
]
"""Of one model, several settings at once. The others are for `process`, for their models and
oracles take seconds."""
OTHERS = [
    Case(page_size=1, chunk_size=1),
    Case(chunk_size=-1, mixed=False),
    Case("qwen3-untied-sharded", chunk_size=16, mixed=False),
    Case("llama", page_size=1, chunk_size=-1),
    Case("llama3-rope-sharded", chunk_size=16),
    Case("qwen2", page_size=1, chunk_size=16),
    Case("qwen2", backend="torch"),
    Case("mistral", chunk_size=16),
    Case("qwen3_moe", page_size=1, chunk_size=16),
    Case("qwen3_moe", chunk_size=-1, mixed=False, backend="torch"),
    Case("mixtral", chunk_size=16),
    Case("mixtral", page_size=1, chunk_size=-1, backend="torch"),
    Case("phi3-sharded", chunk_size=16),
    Case("phi3-partial-rope", page_size=1, chunk_size=16),
    Case("phi3-partial-rope", chunk_size=-1, mixed=False, backend="torch"),
    Case("phi3-short-rope", chunk_size=16),
    Case("phi3-long-rope", chunk_size=16),
    Case("phi3-long-rope", page_size=1, chunk_size=16, backend="torch"),
    Case("glm", chunk_size=16),
    Case("glm4-sharded", page_size=1, chunk_size=16),
    Case("glm4-sharded", chunk_size=-1, mixed=False, backend="torch"),
    Case("olmo2", chunk_size=16),
    Case("olmo2", page_size=1, chunk_size=-1, backend="torch"),
    Case("granite", chunk_size=16),
    Case("granite", page_size=1, chunk_size=-1, backend="torch"),
    Case("granite-yarn-rope", chunk_size=16),
    Case("gemma3_text", page_size=1, chunk_size=16),
    Case("gemma3_text", chunk_size=32, split=(32, 2), overlap=True),
    Case("gpt_oss", page_size=1, chunk_size=16),
    Case("gpt_oss"),
    Case("gpt_oss", chunk_size=-1, mixed=False, prefix_cache=False),
    Case("qwen3-yarn-rope", chunk_size=16),
    Case("qwen2-yarn-rope", chunk_size=16),
    Case("qwen3_moe-yarn-rope", chunk_size=16),
    Case("llama-yarn-rope", chunk_size=16),
    Case(page_size=1, chunk_size=16, mixed=False, overlap=True),
    Case(chunk_size=-1, mixed=False, overlap=True),
    Case("llama", page_size=1, chunk_size=16, backend="torch"),
    Case(chunk_size=-1, mixed=False, backend="torch"),
    Case(chunk_size=16, split=(32, 1), overlap=True),
    Case("llama", page_size=1, chunk_size=16, split=(20, 1), backend="torch"),
    Case("qwen3_moe", page_size=1, chunk_size=16, split=(5, 1), overlap=True),
    Case("gpt_oss", chunk_size=32, split=(32, 1), overlap=True),
]
QUICK_SMALL_POOL = Case(chunk_size=32, pool_tokens=256)
SMALL_POOLS = [
    Case(page_size=1, chunk_size=16, pool_tokens=200),
    Case("llama3-rope-sharded", chunk_size=16, mixed=False, pool_tokens=256),
    Case(chunk_size=32, pool_tokens=256, prefix_cache=False),
    Case(chunk_size=32, pool_tokens=256, overlap=True),
    Case(chunk_size=32, pool_tokens=256, backend="torch"),
    Case(page_size=1, chunk_size=16, pool_tokens=200, overlap=True),
    Case(page_size=1, chunk_size=16, pool_tokens=200, split=(8, 1)),
    Case(chunk_size=32, pool_tokens=256, split=(16, 1), overlap=True),
    Case("gpt_oss", chunk_size=32, pool_tokens=256, overlap=True),
]
DRAFTING = [
    Case(drafts=4),
    Case(page_size=1, chunk_size=16, drafts=8, overlap=True),
    Case("qwen2", chunk_size=32, drafts=4, backend="torch"),
    Case("qwen3_moe", page_size=1, chunk_size=-1, mixed=False, drafts=4),
    Case("llama3-rope-sharded", chunk_size=32, pool_tokens=256, drafts=4),
    Case("gpt_oss", chunk_size=32, drafts=4),
]
ROTATIONS = [
    Case(kind, chunk_size=16)
    for kind in (
        "llama-linear-rope",
        "mistral-linear-rope",
        "mixtral-linear-rope",
        "qwen2-linear-rope",
        "qwen3-linear-rope",
        "qwen3_moe-linear-rope",
        "glm-linear-rope",
        "glm4-linear-rope",
        "olmo2-linear-rope",
        "gpt_oss-linear-rope",
        "granite-linear-rope",
        "llama-dynamic-rope",
        "mistral-yarn-rope",
        "mixtral-yarn-rope",
        "glm-yarn-rope",
        "glm4-yarn-rope",
        "olmo2-yarn-rope",
        "glm4-llama3-rope",
        "gpt_oss-llama3-rope",
    )
]
"""Types that no released model of the family may have. `test_rope_config` compares the frequencies
of all."""
BACKENDS: Final[tuple[AttentionBackend, ...]] = ("torch", "auto")
ALL = [
    Case(kind, page_size, chunk_size, mixed, overlap=overlap, backend=backend)
    for kind, page_size, chunk_size, mixed, overlap, backend in product(
        KINDS, (1, 16), (1, 16, 64, -1), (True, False), (True, False), BACKENDS
    )
    if (chunk_size == -1 or chunk_size >= page_size) and not (overlap and backend == "torch")
]
ALL_SMALL_POOLS = [replace(case, pool_tokens=240) for case in ALL if case.chunk_size > 0]


def beside(quick: list[Case], others: list[Case]) -> list[Any]:
    return [*quick, *(pytest.param(case, marks=pytest.mark.process) for case in others)]


@pytest.mark.parametrize("case", beside(QUICK, OTHERS), ids=str)
def test_answers_do_not_depend_on_the_setup(pair_of: PairOf, case: Case) -> None:
    check(case, *pair_of(case.kind), random_requests(16, 120, 24))


@pytest.mark.parametrize("case", beside([QUICK_SMALL_POOL], SMALL_POOLS), ids=str)
def test_answers_survive_retraction(pair_of: PairOf, case: Case) -> None:
    check(case, *pair_of(case.kind), random_requests(16, 60, 120))


@pytest.mark.process
@pytest.mark.parametrize("case", DRAFTING, ids=str)
def test_answers_with_drafts_agree(pair_of: PairOf, case: Case) -> None:
    lengths = (60, 120) if case.pool_tokens else (120, 60)
    check(case, *pair_of(case.kind), repeating_requests(16, *lengths))


@pytest.mark.full
@pytest.mark.parametrize("case", ROTATIONS, ids=str)
def test_every_rotation(pair_of: PairOf, case: Case) -> None:
    check(case, *pair_of(case.kind), random_requests(16, 120, 24))


@pytest.mark.full
@pytest.mark.parametrize("case", ALL, ids=str)
def test_every_setup(pair_of: PairOf, case: Case) -> None:
    check(case, *pair_of(case.kind), random_requests(16, 200, 40, seed=12))


@pytest.mark.full
@pytest.mark.parametrize("case", ALL_SMALL_POOLS, ids=str)
def test_every_small_pool(pair_of: PairOf, case: Case) -> None:
    check(case, *pair_of(case.kind), random_requests(16, 60, 120, seed=12))


@pytest.mark.process
@pytest.mark.parametrize("mixed", [True, False])
def test_answers_do_not_depend_on_a_budget_that_changes_with_every_step(
    pair_of: PairOf, mixed: bool
) -> None:
    """Chunks of 1 token and of 16 in one prompt, beside each other and beside answers."""
    case = Case(page_size=1, mixed=mixed, chunk_sizes=(1, 16, 16, 1, 16))
    run = check(case, *pair_of(case.kind), random_requests(16, 120, 24))
    assert any({1, 16} <= set(chunks) for chunks in run.chunks.values())


TRAINED = [
    Case("trained"),
    Case("trained", page_size=1, chunk_size=16),
    Case("trained", mixed=False),
    Case("trained", chunk_size=-1, mixed=False),
    Case("trained", chunk_size=32, pool_tokens=192),
    Case("trained", backend="torch"),
]


@pytest.mark.process
@pytest.mark.parametrize("case", TRAINED, ids=str)
def test_trained_weights(pair_of: PairOf, case: Case) -> None:
    """Real prompts, whose answers depend on tokens far back."""
    prompts = [
        make_prompt(task, length, seed)[0]
        for seed, (length, task) in enumerate(product((48, 96, 160), ("copy", "lookup", "add")))
    ]
    requests = [generate(f"r{index}", prompt.encode(), 24) for index, prompt in enumerate(prompts)]
    check(case, *pair_of(case.kind), requests)
