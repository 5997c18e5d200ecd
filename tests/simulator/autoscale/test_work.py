"""The light fleet's queue has the order of the engine's own scheduler."""

from __future__ import annotations

import random
from collections import deque
from functools import partial

import pytest
from sluice_runtime.scheduler.policies import PolicyContext, admission_order
from sluice_runtime.scheduler.request import request_from
from sluice_simulator.autoscale.work import SlackOrder, Work

from tests.runtime.scheduler.building import request

TTFT_SECONDS, TOKEN_SECONDS = 4.0, 0.01


@pytest.mark.parametrize("load", [0.5, 1.2, 4.0], ids=["light", "heavy", "flood"])
@pytest.mark.parametrize("seed", range(3))
def test_requests_are_admitted_in_the_order_of_the_scheduler(seed: int, load: float) -> None:
    draw = random.Random(seed)
    tokens = [draw.choice((20, 100, 600)) for _ in range(80)]
    arrivals = sorted(draw.uniform(0, sum(tokens) * TOKEN_SECONDS / load) for _ in tokens)
    works = [Work(number, arrivals[number], tokens[number], 1) for number in range(len(tokens))]
    light, exact = SlackOrder(TTFT_SECONDS), admission_order("slack")
    light.token_seconds = TOKEN_SECONDS
    requests = [
        request_from(request(str(n), tokens[n], 1, arrival_seconds=arrivals[n]), 1)
        for n in range(len(tokens))
    ]
    now, waiting, to_come = 0.0, deque[Work](), deque(works)
    while waiting or to_come:
        now = now if waiting else max(now, to_come[0].arrival_seconds)
        while to_come and to_come[0].arrival_seconds <= now:
            waiting.append(to_come.popleft())
        context = partial(
            PolicyContext, now, ttft_seconds=TTFT_SECONDS, token_seconds=TOKEN_SECONDS
        )
        theirs = next(exact([requests[work.number] for work in waiting], context))
        ours = next(light.of(waiting, sum(work.prompt_tokens for work in waiting), now))
        assert ours.number == int(theirs.request_id)
        exact.admitted(theirs)
        light.admitted(ours)
        waiting.remove(ours)
        now += ours.prompt_tokens * TOKEN_SECONDS
