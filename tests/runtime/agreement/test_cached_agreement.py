"""Answers do not depend on what of a prompt was computed for another request."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from sluice_runtime.wire.messages import Generate

from tests.runtime.agreement.cases import Case, compare, random_requests
from tests.runtime.agreement.oracle import PairOf
from tests.runtime.harness import generate

pytestmark = pytest.mark.xdist_group("transformers")

PAGES = [1, 16]
SETUPS = [
    Case(page_size=16, chunk_size=32, overlap=True),
    pytest.param(Case(page_size=1, chunk_size=32), marks=pytest.mark.process),
    pytest.param(Case(page_size=16, chunk_size=32, mixed=False), marks=pytest.mark.process),
    pytest.param(Case("gpt_oss", chunk_size=32, overlap=True), marks=pytest.mark.process),
]


def branches(prefixes: Sequence[int], each: int, answer: int) -> list[Generate]:
    """`each` requests for every prefix of so many tokens, each with an end of its own, in turns."""
    draw = random.Random(5)
    heads = [[draw.randrange(256) for _ in range(length)] for length in prefixes]
    return [
        generate(
            f"r{turn}-{number}",
            [*head, *(draw.randrange(256) for _ in range(draw.randint(1, 30)))],
            draw.randint(4, answer),
        )
        for turn in range(each)
        for number, head in enumerate(heads)
    ]


@pytest.mark.parametrize("case", SETUPS, ids=str)
def test_the_same_prompts_twice(pair_of: PairOf, case: Case) -> None:
    first = random_requests(8, 100, 24)
    again = [generate(f"again-{r.request_id}", r.prompt_ids, r.max_tokens) for r in first]
    run = compare(case, *pair_of(case.kind), [*first, *again])
    long = [r for r in again if len(r.prompt_ids) > 40]
    assert len(long) >= 4
    assert all(run.cached[r.request_id] > 0 for r in long)


@pytest.mark.parametrize("case", SETUPS, ids=str)
def test_prompts_that_part_after_a_while(pair_of: PairOf, case: Case) -> None:
    requests = branches((90, 48, 33), each=5, answer=24)
    run = compare(case, *pair_of(case.kind), requests)
    page = case.page_size
    hits = [run.cached[r.request_id] for r in requests if r.request_id.endswith("-0")]
    assert max(hits) >= 90 // page * page
    assert sum(hits) >= 3 * (90 // page * page), "the longest prefix was computed again and again"


@pytest.mark.parametrize("case", SETUPS, ids=str)
def test_choices_of_one_prompt(pair_of: PairOf, case: Case) -> None:
    """As n = 4 asks for: all four are there at once, and the prompt is computed once."""
    prompts = random_requests(4, 120, 24, seed=3)
    requests = [
        generate(f"{r.request_id}-{choice}", r.prompt_ids, 12 + choice)
        for r in prompts
        for choice in range(4)
    ]
    run = compare(case, *pair_of(case.kind), requests)
    for request in prompts:
        if len(request.prompt_ids) > 64:
            cached = [run.cached[f"{request.request_id}-{choice}"] for choice in range(4)]
            assert sorted(cached)[1] >= 32, "two of them computed the whole prompt"


@pytest.mark.process
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", PAGES)
def test_prefixes_that_are_evicted(pair_of: PairOf, page_size: int, overlap: bool) -> None:
    case = Case(page_size=page_size, chunk_size=32, pool_tokens=480, overlap=overlap)
    run = compare(case, *pair_of(case.kind), branches((90, 80, 70, 60), each=5, answer=30))
    assert run.evictions > 0
    assert sum(run.cached.values()) > 0


HOSTED = [
    Case(pool_tokens=480, chunk_size=32, host_memory="4Mi"),
    pytest.param(
        Case(pool_tokens=480, chunk_size=32, host_memory="4Mi", page_size=1, overlap=True),
        marks=pytest.mark.process,
    ),
]


@pytest.mark.parametrize("case", HOSTED, ids=str)
def test_prefixes_that_come_back_from_the_host(pair_of: PairOf, case: Case) -> None:
    run = compare(case, *pair_of(case.kind), branches((90, 80, 70, 60, 95, 85), 4, answer=30))
    assert run.evictions > 0
    assert run.host is not None
    assert run.host.hit_tokens["memory"] > 100


@pytest.mark.process
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("page_size", PAGES)
def test_requests_that_are_sent_back(pair_of: PairOf, page_size: int, overlap: bool) -> None:
    """What a retracted request computed stays in the tree, and may be found or evicted there."""
    case = Case(page_size=page_size, chunk_size=32, pool_tokens=256, overlap=overlap)
    requests = branches((20, 30), each=8, answer=100)
    run = compare(case, *pair_of(case.kind), requests)
    assert run.retractions > 0
    assert run.resumed_tokens > 0
    assert run.evictions > 0
