"""Token ids made for a trace: alike as far as its block ids are, and no further."""

from __future__ import annotations

import pytest
from sluice_simulator.traces.request import BLOCK_TOKENS, TraceRequest
from sluice_simulator.traces.synthetic import WORKLOADS, synthesise
from sluice_simulator.traces.tokens import answer_id, prompt_ids


def _shared(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def test_prompts_share_what_their_blocks_share() -> None:
    one = prompt_ids(TraceRequest(0.0, 1_300, 1, (4, 9, 2)), 0)
    other = prompt_ids(TraceRequest(0.0, 1_500, 1, (4, 9, 3)), 1)
    assert (len(one), len(other)) == (1_300, 1_500)
    assert _shared(one, other) == 2 * BLOCK_TOKENS


def test_a_prompt_that_goes_on_where_another_ended_contains_it() -> None:
    first = prompt_ids(TraceRequest(0.0, 700, 1, (1, 2)), 0)
    second = prompt_ids(TraceRequest(0.0, 1_024, 1, (1, 2)), 1)
    assert second[:700] == first


def test_prompts_without_blocks_share_nothing() -> None:
    assert _shared(*(prompt_ids(TraceRequest(0.0, 50, 1), index) for index in (0, 1))) == 0


def test_answers_are_unlike_prompts_and_each_other() -> None:
    prompts = [prompt_ids(TraceRequest(0.0, 1, 1), 0), prompt_ids(TraceRequest(0.0, 1, 1, (0,)), 1)]
    ids = [prompts[0][0], prompts[1][0], answer_id(0), answer_id(1)]
    assert len(set(ids)) == 4
    assert max(ids) < 2**31


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_synthetic_trace_is_its_seed(name: str) -> None:
    workload = WORKLOADS[name]
    trace = synthesise(workload, 3)
    assert trace == synthesise(workload, 3)
    assert trace != synthesise(workload, 4)
    assert len(trace.requests) == workload.requests
    for request in trace.requests:
        wanted = -(-request.prompt_tokens // BLOCK_TOKENS)
        assert len(request.block_ids) in (0, wanted)


def test_synthetic_prefixes_are_shared_and_the_rest_is_not() -> None:
    trace = synthesise(WORKLOADS["rag"], 0)
    ids = [prompt_ids(request, index) for index, request in enumerate(trace.requests[:80])]
    prefix = WORKLOADS["rag"].prefix_blocks * BLOCK_TOKENS
    shared = {_shared(a, b) for n, a in enumerate(ids) for b in ids[:n]}
    assert shared == {0, prefix}
