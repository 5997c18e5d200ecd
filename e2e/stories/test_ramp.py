"""A platform engineer lets a pool follow a load that rises for five minutes, from less than one
engine's worth to three. 99 % of the requests keep the promise, with at most one engine more than a
plan that knows all requests needs.

**The plan in hindsight.** The clients' own times say how many requests were held at each moment:
a request from its arrival to its last token. An engine holds ROWS of them. An engine must be asked
for the length of a start before it is needed, and a pool shrinks only to the most engines needed in
the last minute. So at the moment t the plan is

    ceil(the most requests held at once between t - HOLD and t + the length of a start / ROWS)

and at each second the pool is asked for at most one engine more than the plan. When a pool grows,
the plan leaves out the last minute.

**The engines** are real ones of the small model, whose steps take as long as a larger model's on an
accelerator (`e2e/altered_engine.py`). So an answer takes ANSWER_SECONDS on any machine with
two processors, and an engine has answers for ROWS / ANSWER_SECONDS requests a second."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.altered import altered_in_config_map, paced_template
from e2e.stories.ramp import Answer, Hindsight, Ramp, Sizes, answers, size_at
from e2e.stories.scaled import Scaled
from e2e.stories.service import NAMESPACE, chat_service, scaled_between, unix_seconds

NAME: Final = "ramp"
TTFT_SECONDS, ITL_SECONDS = 5.0, 0.5
PERCENT: Final = 99.0
"""Percent of the requests that must keep both promises."""
ROWS: Final = 24
STEP_SECONDS, TOKENS = 0.16, 100
ANSWER_SECONDS: Final = STEP_SECONDS * TOKENS
AN_ENGINES_RATE: Final = ROWS / ANSWER_SECONDS
RAMP: Final = Ramp(300.0, 0.75 * AN_ENGINES_RATE, 3 * AN_ENGINES_RATE, seed=1)
MAX_REPLICAS: Final = 5
HOLD_SECONDS: Final = 60.0
MORE_ENGINES: Final = 1
STATUS_SECONDS: Final = 300.0
"""Seconds of answers that `status.scaling.inTimePercent` counts."""
STATUS_TOLERANCE_PERCENT: Final = 1.0
"""Tolerance for answers at both ends of those five minutes, which only one side counts."""
FROM_TO: Final = re.compile(r"replicas from (\d+) to (\d+)")


def ramp_service() -> dict[str, Any]:
    """One pool of paced engines that follows the load."""
    template = paced_template(NAME, STEP_SECONDS)
    service = scaled_between(1, MAX_REPLICAS, chat_service(NAME, template=template))
    service["spec"]["engine"] |= {"maxRunningRequests": ROWS, "threads": 1}
    service["spec"]["slo"] = {
        "ttftMilliseconds": int(1000 * TTFT_SECONDS),
        "itlMilliseconds": int(1000 * ITL_SECONDS),
        "percentile": round(PERCENT),
    }
    return service


@pytest.fixture
def scaled(kubectl: Kubectl) -> Iterator[Scaled]:
    """The service with one engine, and the ConfigMap that paces its engines."""
    scaled = Scaled(kubectl, NAME)
    with altered_in_config_map(kubectl, NAME):
        scaled.service.apply(ramp_service())
        scaled.service.wait_for("Updated", "True")
        yield scaled
        scaled.service.delete()
        scaled.service.wait_until_children_are_gone()


def sizes_asked_for(scaled: Scaled, began: float) -> Sizes:
    """Sizes that the pool was asked for, by the product's clock. It begins with one engine."""
    sizes: list[tuple[float, int]] = [(began, 1)]
    for when, note in scaled.decisions():
        numbers = FROM_TO.search(note)
        assert numbers, note
        assert int(numbers[1]) == sizes[-1][1], f"an event is missing before: {note}"
        sizes.append((when, int(numbers[2])))
    return sizes


def is_in_time(answer: Answer) -> bool:
    return answer.ttft_seconds <= TTFT_SECONDS and answer.itl_seconds <= ITL_SECONDS


def percent_in_time(asked: Sequence[Answer]) -> float:
    return 100 * sum(map(is_in_time, asked)) / len(asked)


def percentile(values: Sequence[float], percent: float) -> float:
    return sorted(values)[int(percent / 100 * (len(values) - 1))]


def latencies(asked: Sequence[Answer]) -> dict[str, Any]:
    """Latencies as the clients measured them."""
    firsts = [answer.ttft_seconds for answer in asked]
    return {
        "requests": len(asked),
        "in_time_percent": round(percent_in_time(asked), 2),
        "ttft_p50_p99_max_seconds": [round(percentile(firsts, p), 2) for p in (50, 99, 100)],
        "itl_p99_ms": round(1000 * percentile([answer.itl_seconds for answer in asked], 99)),
    }


def engines(hindsight: Hindsight, sizes: Sizes) -> dict[str, Any]:
    """Figures of the product and of the plan: [second, engines] at each change, and
    engine-seconds."""

    def by_time(sizes: Sizes) -> list[list[int]]:
        return [[int(at - hindsight.began), count] for at, count in sizes]

    seconds = hindsight.seconds()
    return {
        "engines": by_time(sizes),
        "plan": by_time(hindsight.plans()),
        "engine_seconds": sum(size_at(sizes, at) for at in seconds),
        "plan_engine_seconds": sum(map(hindsight.plan, seconds)),
    }


def shares_in_time(asked: Sequence[Answer], scaling: dict[str, Any]) -> dict[str, Any]:
    """Shares of answers in time in the last five minutes before the status was written: by the
    status, and by the clients."""
    written = unix_seconds(scaling["time"])
    lately = [answer for answer in asked if written - STATUS_SECONDS < answer.ended <= written]
    return {
        "status_in_time_percent": float(scaling["inTimePercent"]),
        "clients_in_time_percent_then": round(percent_in_time(lately), 2),
    }


@pytest.mark.full  # five minutes and more
@pytest.mark.timeout(900)
def test_a_ramp_is_followed_in_time_with_at_most_one_engine_more_than_the_plan(
    cluster: Cluster, scaled: Scaled, capsys: pytest.CaptureFixture[str]
) -> None:
    with reach(cluster, NAMESPACE, NAME) as url:
        asked = answers(url, RAMP, TOKENS)
    starts = [round(seconds, 1) for seconds in scaled.start_seconds()]
    hindsight = Hindsight(asked, ROWS, statistics.median(starts))
    sizes = sizes_asked_for(scaled, hindsight.began)
    shares = shares_in_time(asked, scaled.scaling())
    with capsys.disabled():
        figures = latencies(asked) | engines(hindsight, sizes) | shares
        print(json.dumps(figures | {"start_seconds": starts}))
        print("\n".join(note for _, note in scaled.decisions()))
    wrong = [answer for answer in asked if answer.error or answer.tokens != TOKENS]
    assert wrong == []
    assert percent_in_time(asked) >= PERCENT
    assert hindsight.beyond(sizes, MORE_ENGINES, HOLD_SECONDS) == []
    assert shares["status_in_time_percent"] == pytest.approx(
        shares["clients_in_time_percent_then"], abs=STATUS_TOLERANCE_PERCENT
    )
