"""Two engines that hand the KV cache over agree with transformers: tokens, and logprobs of answers
and prompts.

Real engines and connections in one process; freed pages are poisoned. Where one of them is of two
ranks, the prefill engine is in a process of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sluice_runtime.wire.messages import Generate, HandoverLoad, Sampling

from tests.runtime.agreement.oracle import Oracle, PairOf
from tests.runtime.agreement.scores import check_answer
from tests.runtime.agreement.test_long_agreement import conversation
from tests.runtime.handover.engines import (
    HasPrefill,
    RunningEngine,
    prefill_elsewhere,
    running,
    through,
)
from tests.runtime.harness import generate

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("transformers")]

SAMPLED = Sampling(temperature=1.1, top_p=0.9, seed=3, repetition_penalty=1.1)


@dataclass(frozen=True)
class Case:
    """Settings of both engines."""

    backend: str
    page_size: int
    chunk_size: int
    overlap: bool = False
    prefix_cache: bool = True
    ranks: tuple[int, int] = (1, 1)
    """Of the prefill engine and of the decode engine."""

    def __str__(self) -> str:
        flags = f"{'overlap' if self.overlap else 'sync'}-{'cache' if self.prefix_cache else 'new'}"
        ranks = "" if self.ranks == (1, 1) else "-{}to{}".format(*self.ranks)
        return f"{self.backend}-{self.page_size}-{self.chunk_size}-{flags}{ranks}"


SHORT = [Case("Mooncake", 16, 64, overlap=True), Case("TCP", 1, -1)]
WIDE = [
    Case(backend, page_size, chunk_size, overlap, prefix_cache)
    for backend in ("Mooncake", "TCP")
    for page_size in (1, 16)
    for chunk_size in (16, 96, 2048, -1)
    for overlap, prefix_cache in ((False, True), (True, False))
]
UNEQUAL = [
    Case("TCP", 16, 64, overlap=True, ranks=(1, 2)),
    Case("Mooncake", 16, 64, ranks=(2, 1)),
    *(
        pytest.param(replace(case, ranks=ranks), marks=pytest.mark.full)
        for case in WIDE[::5]
        for ranks in ((1, 2), (2, 1))
    ),
]


def requests_of(lengths: Sequence[int], answer: int) -> list[Generate]:
    """Greedy ones, all with logprobs, and one of three drawn; short prompts have theirs, too. Each
    twice, so that the second finds tokens cached."""
    asked = []
    for index, length in enumerate(lengths):
        prompt = conversation(length, index)
        fields: dict[str, Any] = {"logprobs": 5 if index % 2 else 0}
        if index % 3 == 1:
            fields["sampling"] = SAMPLED
        if length <= 300:
            fields["prompt_logprobs"] = 2
        asked += [generate(f"r{index}{turn}", prompt, answer, **fields) for turn in "ab"]
    return asked


@contextmanager
def pools(
    folder: str, case: Case, decode_tokens: int
) -> Iterator[tuple[HasPrefill, RunningEngine]]:
    settings = {
        "model": folder,
        "dtype": "float32",
        "page_size": case.page_size,
        "chunk_size": case.chunk_size,
        "overlap": case.overlap,
        "prefix_cache": case.prefix_cache,
    }
    theirs, ours = case.ranks
    of_prefill = settings | {"kv_pool_tokens": 16384}
    if case.ranks == (1, 1):
        first: AbstractContextManager[HasPrefill] = running("prefill", case.backend, **of_prefill)
    else:
        settings |= {"attention_backend": "torch"}
        of_prefill |= {"attention_backend": "torch", "backend": case.backend, "ranks": theirs}
        first = prefill_elsewhere(**of_prefill)
    of_decode = settings | {"kv_pool_tokens": decode_tokens, "ranks": ours}
    with first as prefill, running("decode", case.backend, **of_decode) as decode:
        yield prefill, decode


def compare(
    oracle: Oracle, engines: tuple[HasPrefill, RunningEngine], requests: Sequence[Generate]
) -> HandoverLoad:
    """Returns what the decode engine has handed over so far."""
    prefill, decode = engines
    answers = decode.answers(through(prefill, requests))
    clear = 0
    for request in requests:
        answer = answers[request.request_id]
        assert len(answer.tokens) == request.max_tokens, answer.end
        clear += check_answer(oracle, request, answer.deltas)
    assert clear > sum(request.max_tokens for request in requests) / 4
    assert decode.last is not None
    load = decode.last.load.handover
    assert load is not None
    assert load.failures == {}
    return load


@pytest.mark.parametrize("case", SHORT, ids=str)
def test_two_engines_agree_with_the_oracle(pair_of: PairOf, case: Case) -> None:
    folder, oracle = pair_of("trained")
    with pools(str(folder), case, decode_tokens=4096) as engines:
        load = compare(oracle, engines, requests_of([1, 15, 16, 17, 65, 200, 500], 12))
    assert load.read_bytes > 0
    assert load.recomputed == 0


def test_they_do_where_the_decode_engine_retracts(pair_of: PairOf) -> None:
    """All three are let in; each grows far behind what is kept free for it."""
    folder, oracle = pair_of("trained")
    grow = [generate(f"g{seed}", conversation(40, seed), 800, logprobs=2) for seed in range(3)]
    with pools(str(folder), Case("TCP", 16, 64), decode_tokens=1760) as engines:
        load = compare(oracle, engines, grow)
    assert load.recomputed > 0


@pytest.mark.parametrize("case", SHORT, ids=str)
def test_a_prompt_that_fills_both_pools_is_scored(pair_of: PairOf, case: Case) -> None:
    folder, oracle = pair_of("trained")
    settings = {
        "model": str(folder),
        "dtype": "float32",
        "page_size": case.page_size,
        "chunk_size": case.chunk_size,
        "context_length": 128,
        "kv_pool_tokens": 128,
    }
    fields: dict[str, Any] = {"prompt_logprobs": 2, "logprobs": 1, "sampling": SAMPLED}
    full = generate("full", conversation(128, 1), 0, **fields)
    with (
        running("prefill", case.backend, **settings) as prefill,
        running("decode", case.backend, **settings) as decode,
    ):
        answer = decode.answers(through(prefill, [full]))["full"]
    assert answer.end.finish_reason == "length", answer.end
    check_answer(oracle, full, answer.deltas)


@pytest.mark.parametrize("case", UNEQUAL, ids=str)
def test_engines_of_unequal_ranks_do(pair_of: PairOf, case: Case) -> None:
    folder, oracle = pair_of("trained")
    with pools(str(folder), case, decode_tokens=4096) as engines:
        load = compare(oracle, engines, requests_of([1, 15, 16, 17, 65, 200, 500], 12))
    assert load.read_bytes > 0


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", WIDE, ids=str)
def test_they_do_for_all_settings_up_to_8000_tokens(pair_of: PairOf, case: Case) -> None:
    folder, oracle = pair_of("trained")
    drawn = random.Random(str(case))
    lengths = [1, case.page_size, *(drawn.randrange(2, 2000) for _ in range(6)), 8000]
    with pools(str(folder), case, decode_tokens=16384) as engines:
        compare(oracle, engines, requests_of(lengths, 12))
