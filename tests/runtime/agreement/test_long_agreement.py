"""The engine agrees with transformers up to the trained model's whole context: 8,192 tokens."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import cycle, product
from typing import Any

import msgspec
import pytest
from sluice_runtime.scheduler.policies import POLICIES
from sluice_runtime.wire.messages import Generate

from e2e.model.tasks import TASKS, make_prompt
from tests.runtime.agreement.cases import Case, check, compare
from tests.runtime.agreement.oracle import PairOf
from tests.runtime.harness import Run, generate

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("transformers")]

CONTEXT_TOKENS = 8192


@cache
def conversation(length: int, seed: int) -> bytes:
    """The last `length` bytes of questions and answers in turn; ends with a question."""
    text = ""
    for turn, (task, asked) in enumerate(zip(cycle(TASKS), cycle((160, 96, 200, 48, 120)))):
        prompt, answer = make_prompt(task, asked, 1000 * seed + turn)
        if len(text) + len(prompt) >= length:
            return (text + prompt)[-length:].encode()
        text += prompt + answer
    raise AssertionError("there is always another question")


def conversations(longest: int, answer: int) -> list[Generate]:
    """Ten requests: seven of many lengths up to `longest`; of the last three, two begin as the
    first does and one is the second again, so that they find tokens cached."""
    draw = random.Random(9)
    lengths = [longest, *(int(longest * share) for share in (0.6, 0.35, 0.2, 0.08, 0.03, 0.01))]
    prompts = [conversation(length, seed) for seed, length in enumerate(lengths)]
    first = prompts[0]
    prompts += [first[: longest // 2] + prompts[4], first[: longest // 4] + prompts[5], prompts[1]]
    return [
        generate(f"r{index}", prompt, draw.randint(answer // 2, answer))
        for index, prompt in enumerate(prompts)
    ]


def check_cached(case: Case, run: Run) -> None:
    assert (sum(run.cached.values()) > 0) == case.prefix_cache


SHORT = [
    Case("trained", chunk_size=256),
    Case("trained", chunk_size=256, overlap=True, threads=2),
    Case("trained", page_size=1, chunk_size=256, threads=3),
    Case("trained", page_size=1, chunk_size=-1, mixed=False, backend="torch"),
]
SHORT_SMALL_POOL = Case("trained", chunk_size=128, pool_tokens=1200)
ENGINES: list[dict[str, Any]] = [
    {"backend": "torch"},
    {"threads": 1},
    {"threads": 2},
    {"threads": 3},
    {"overlap": True},
]
"""Key heads are dealt out to one thread or to two, but not to three."""
STEPS = [
    Case("trained", page_size, chunk_size, mixed)
    for page_size, chunk_size, mixed in (
        *((1, 128, True), (16, 128, True), (16, 512, False), (16, 2048, True), (1, 2048, False)),
        *((1, -1, False), (16, -1, True), (16, -1, False)),
    )
]
OTHERS = [
    *(Case(kind, chunk_size=512) for kind in ("qwen3", "llama", "llama3-rope-sharded")),
    Case("trained", chunk_size=512, prefix_cache=False),
    Case("trained", chunk_sizes=(2048, 16, 512, 64, 16)),
]
SMALL_POOLS = [
    Case("trained", page_size, chunk_size, mixed, pool_tokens=10_240)
    for page_size, chunk_size, mixed in ((16, 128, True), (1, 1024, True), (16, 1024, False))
]


def by_every_engine(cases: list[Case]) -> list[Case]:
    return [replace(case, **engine) for case, engine in product(cases, ENGINES)]


@pytest.mark.parametrize("case", SHORT, ids=str)
def test_an_eighth_of_the_context(pair_of: PairOf, case: Case) -> None:
    check_cached(case, check(case, *pair_of(case.kind), conversations(1000, 40)))


def test_an_eighth_of_the_context_is_retracted(pair_of: PairOf) -> None:
    case = SHORT_SMALL_POOL
    run = check(case, *pair_of(case.kind), conversations(1000, 100))
    assert run.resumed_tokens > 0, "whoever was sent back found nothing of his"


@pytest.mark.full
@pytest.mark.parametrize("case", by_every_engine([*STEPS, *OTHERS]), ids=str)
def test_the_whole_context(pair_of: PairOf, case: Case) -> None:
    requests = conversations(CONTEXT_TOKENS - 64, 64)
    check_cached(case, check(case, *pair_of(case.kind), requests))


@pytest.mark.full
@pytest.mark.parametrize("case", by_every_engine(SMALL_POOLS), ids=str)
def test_the_whole_context_in_a_pool_that_hardly_holds_it(pair_of: PairOf, case: Case) -> None:
    requests = conversations(CONTEXT_TOKENS - 300, 300)
    check_cached(case, check(case, *pair_of(case.kind), requests))


@pytest.mark.full
@pytest.mark.parametrize("policy", POLICIES)
def test_the_whole_context_under_every_policy(pair_of: PairOf, policy: str) -> None:
    case = Case("trained", chunk_size=512, policy=policy, overlap=True, max_running_requests=4)
    requests = [
        msgspec.structs.replace(
            one, priority=20 * max(0, index - 5), routing_key=f"key-{index % 3}"
        )
        for index, one in enumerate(conversations(CONTEXT_TOKENS - 64, 64))
    ]
    run = compare(case, *pair_of(case.kind), requests)
    check_cached(case, run)
    assert (run.retractions > 0) == (policy == "priority")
