"""How many adapters run at once, and that none waits for ever."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler.adapter_room import CLAIM_SECONDS, AdapterRoom
from sluice_runtime.scheduler.request import Request, request_from

from tests.examples import examples
from tests.runtime.scheduler.building import request

STEP_SECONDS = 0.1
LONGEST_STEPS = 20
"""Of an answer."""


def waiting(name: str, adapter: str, arrival_seconds: float = 0.0) -> Request:
    message = request(name, 4, 8, adapter=adapter, arrival_seconds=arrival_seconds)
    return request_from(message, 8)


def admitted(room: AdapterRoom, requests: list[Request]) -> list[str]:
    """Ids of those that join a step, in their order."""
    joined = []
    for one in requests:
        if room.admits(one):
            room.add(one)
            joined.append(one.request_id)
    return joined


def test_others_go_on_where_an_adapter_has_no_room() -> None:
    running = [waiting("0", "a")]
    queue = [waiting("1", "b"), waiting("2", "c"), waiting("3", ""), waiting("4", "b")]
    assert admitted(AdapterRoom(2, running, 0.0), queue) == ["1", "3", "4"]


def test_who_waits_too_long_makes_the_smallest_adapter_yield() -> None:
    running = [waiting("0", "a"), waiting("1", "a"), waiting("2", "b")]
    queue = [waiting("3", "c"), *(waiting(f"{name}-more", name) for name in ("a", "b", ""))]
    before = AdapterRoom(2, running, CLAIM_SECONDS)
    assert admitted(before, queue) == ["a-more", "b-more", "-more"]
    late = AdapterRoom(2, running, CLAIM_SECONDS + 1)
    assert admitted(late, queue) == ["a-more", "-more"]


def test_each_claim_has_one_adapter_yield() -> None:
    running = [waiting("0", "a"), waiting("1", "b"), waiting("2", "d")]
    queue = [waiting("3", "c"), waiting("4", "c"), *(waiting(f"{n}+", n) for n in "abd")]
    assert admitted(AdapterRoom(3, running, CLAIM_SECONDS + 1), queue) == ["b+", "d+"]


@given(
    seed=st.integers(0, 1000),
    most=st.integers(1, 4),
    adapters=st.integers(2, 9),
    arrivals=st.integers(1, 4),
)
@examples(60)
def test_no_adapter_starves(seed: int, most: int, adapters: int, arrivals: int) -> None:
    assert longest_wait(seed, most, adapters, arrivals) is not None


def test_without_claims_one_would() -> None:
    """The property above can fail."""
    never = 1e9
    assert longest_wait(3, 1, 4, 4, claim_seconds=never) is None


def longest_wait(
    seed: int, most: int, adapters: int, arrivals: int, claim_seconds: float = CLAIM_SECONDS
) -> int | None:
    """Steps that a request of a rare adapter waits while some of common ones arrive in each step;
    None: it waits too long. There is room for every row, so that adapters alone are short."""
    draw, running, queue = random.Random(seed), dict[Request, int](), list[Request]()
    # Each adapter before it in the order of claims may have to end once.
    bound = CLAIM_SECONDS / STEP_SECONDS + (adapters + 1) * LONGEST_STEPS * 2 + 2
    for step in range(int(bound)):
        now = step * STEP_SECONDS + CLAIM_SECONDS - claim_seconds
        if step == 1:
            queue.append(waiting("rare", "rare", step * STEP_SECONDS))
        running = {one: left - 1 for one, left in running.items() if left > 1}
        queue += [
            waiting(f"{step}-{n}", f"a{draw.randrange(adapters)}", step * STEP_SECONDS)
            for n in range(arrivals)
        ]
        room = AdapterRoom(most, running, now)
        joined = set(admitted(room, queue))
        if "rare" in joined:
            return step
        for one in [one for one in queue if one.request_id in joined]:
            running[one] = draw.randint(1, LONGEST_STEPS)
            queue.remove(one)
        assert len({one.adapter for one in running}) <= most
    return None
