"""The policy slack: as few first tokens late as any order could have, and nobody refused."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sluice_runtime.scheduler.policies import POLICIES, PolicyContext
from sluice_runtime.scheduler.request import Request, request_from

from tests.examples import examples
from tests.runtime.scheduler.building import request

TOKEN = 0.01
ROUNDING = 1e-9
"""Who ends within so many seconds of its deadline may count as late or not."""


def waiting(name: str, prompt: int, arrival: float = 0.0) -> Request:
    return request_from(request(name, prompt, 1, arrival_seconds=arrival), 1)


def context(now: float, ttft: float | None = 1.0, **more: Any) -> PolicyContext:
    return PolicyContext(now, ttft_seconds=ttft, token_seconds=TOKEN, **more)


def order(requests: list[Request], view: PolicyContext) -> list[Request]:
    return list(POLICIES["slack"](requests, view))


def names(requests: list[Request], view: PolicyContext) -> str:
    return "".join(each.request_id for each in order(requests, view))


@pytest.mark.parametrize(
    ("prompts", "view", "expected"),
    [
        ((50, 20, 20), context(0.0), "abc"),
        ((80, 20, 20), context(0.0), "bca"),
        ((20, 20, 20), context(0.5), "abc"),
        ((20, 20, 20), context(0.7), "abc"),
        ((40, 20, 20), context(0.7), "bac"),
        ((20, 20, 20), context(9.0), "abc"),
        ((90, 20, 20), context(0.0, None), "abc"),
        ((50, 20, 20), context(0.0, ahead_seconds=0.5), "bca"),
    ],
)
def test_whoever_would_make_others_late_comes_after_them(
    prompts: tuple[int, ...], view: PolicyContext, expected: str
) -> None:
    """A token takes 10 ms, and 1 s is promised. Of those that do not all fit the largest goes."""
    requests = [waiting(name, size) for name, size in zip("abc", prompts, strict=True)]
    assert names(requests, view) == expected


def test_while_the_speed_is_unknown_only_what_is_late_already_comes_last() -> None:
    requests = [waiting("a", 500, 0.0), waiting("b", 10, 3.0)]
    assert names(requests, PolicyContext(3.5, ttft_seconds=1.0)) == "ba"


requests_strategy = st.lists(
    st.tuples(st.integers(1, 80), st.floats(0, 0.9)), min_size=1, max_size=6
)


@given(requests_strategy)
@example([(1, 0.0), (1, 0.5), (38, 0.5), (41, 0.8)])  # rounding decides about the last
@examples(60)
def test_no_order_leaves_fewer_late(drawn: list[tuple[int, float]]) -> None:
    requests = [waiting(str(n), size, arrival) for n, (size, arrival) in enumerate(drawn)]
    found = order(requests, context(1.0))
    assert sorted(map(id, found)) == sorted(map(id, requests)), "nobody is refused"
    best = min(late(list(each), -ROUNDING) for each in permutations(requests))
    assert late(found, ROUNDING) <= best


def late(requests: list[Request], allowed_seconds: float) -> int:
    """How many end more than `allowed_seconds` after their deadline."""
    ends, count = 1.0, 0
    for each in requests:
        ends += each.uncomputed_tokens * TOKEN
        count += ends > each.arrival_seconds + 1.0 + allowed_seconds
    return count
