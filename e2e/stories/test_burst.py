"""A platform engineer's service has one engine when 120 requests come at once, and scales to three:
what waits at the first engine moves to the others as soon as they are ready.

The same requests come again once all three are there. Nobody waits much longer the first time than
the second, but for the time that an engine needs to start. The application developer, whose client
does not retry, gets every answer, and no engine computes one in vain.

**The engines** are real ones of the small model, whose steps take STEP_SECONDS
(`e2e/altered_engine.py`), so an engine holds ROWS answers for some ANSWER_BYTES steps."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import Any, Final

import pytest
from sluice_contract.cluster.labels import ROUTER_ROLE, Role
from sluice_contract.cluster.ports import ROUTER_METRICS
from sluice_contract.wire.load import Ledger

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.model.tasks import COPY_HEADER, make_prompt
from e2e.reach import reach
from e2e.stories.altered import altered_in_config_map, paced_template
from e2e.stories.pods import Pod, load_report, metric, pods, poll, watched_ready_times
from e2e.stories.ramp import Answer, ask, client_of
from e2e.stories.scaled import Scaled
from e2e.stories.service import NAMESPACE, chat_service, disaggregated_service, scaled_between

CONFIG_MAP: Final = "burst"
REQUESTS: Final = 120
ANSWER_BYTES: Final = 32
ROWS: Final = 8
STEP_SECONDS: Final = 0.1
LEAST, MOST = 1, 3
GROWN_SECONDS: Final = 60
WORK_SECONDS: Final = 2.0
"""Seconds within which a new engine gives its first token."""
TTFT_RATIO: Final = 1.5
ROUTED: Final = re.compile(r"(burst-\d-\d+) POST \S+ 200 \S+ engine=(\S+)")


def burst_service(name: str, role: Role, routers: int) -> dict[str, Any]:
    """The autoscale tutorial's service. Its engines are paced, and full sooner."""
    sections = {
        "template": paced_template(CONFIG_MAP, STEP_SECONDS),
        "router": {"replicas": routers},
    }
    if role is Role.DECODE:
        service = scaled_between(LEAST, MOST, disaggregated_service(name, 1, LEAST, **sections))
        service["spec"]["prefill"]["autoscaling"] = {"minReplicas": 1, "maxReplicas": 1}
    else:
        service = scaled_between(LEAST, MOST, chat_service(name, LEAST, **sections))
    service["spec"]["engine"] |= {"maxRunningRequests": ROWS, "threads": 1}
    service["spec"]["slo"] = {"ttftMilliseconds": 2000}
    return service


class Burst:
    """The service, and how it handled bursts."""

    def __init__(self, kubectl: Kubectl, name: str, role: Role) -> None:
        self.scaled = Scaled(kubectl, name)
        self._kubectl = kubectl
        self._role = role
        """Role of the engines that answer."""

    def engines(self) -> list[Pod]:
        """Pods of the engines that answer."""
        return pods(self._kubectl, self.scaled.service, self._role)

    def routers(self) -> list[Pod]:
        return pods(self._kubectl, self.scaled.service, ROUTER_ROLE)

    def kill_once_requests_move(self, pod: Pod) -> bool:
        """Whether requests moved, and `pod` was killed then."""
        moved = poll(lambda: any(map(self._retries, self.routers())), GROWN_SECONDS)
        if moved:
            pod.kill()
        return moved

    def ledger(self, routers: Sequence[Pod] | None = None) -> Ledger:
        """The sum of these routers' ledgers; by default of all routers."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/%s:{ROUTER_METRICS}/proxy/ledger"
        routers = self.routers() if routers is None else routers
        texts = [self._kubectl.run("get", "--raw", path % router.name) for router in routers]
        ledgers = [Ledger.model_validate_json(text) for text in texts]
        total = sum((Counter(ledger.model_dump()) for ledger in ledgers), Counter())
        return Ledger(**total)

    def finished_requests(self) -> int:
        """Answers that engines have ended. An answer that two engines ended counts twice."""
        reports = [load_report(self._kubectl, engine) for engine in self.engines()]
        return sum(report.figures.finished_requests_total or 0 for report in reports)

    def first_tokens(self, answers: Mapping[str, Answer]) -> dict[str, float]:
        """Times at which each engine that answered gave its first token, as clients saw it."""
        words = ("-n", NAMESPACE)
        logs = [self._kubectl.run("logs", router.name, *words) for router in self.routers()]
        engines = dict(ROUTED.findall("".join(logs)))
        first: dict[str, float] = {}
        for request, answer in answers.items():
            engine = engines[request]
            first[engine] = min(answer.first, first.get(engine, answer.first))
        return first

    def _retries(self, router: Pod) -> float:
        return metric(self._kubectl, router, "sluice_router_retries_total", ROUTER_METRICS)


async def _burst(url: str, name: str) -> dict[str, Answer]:
    async with client_of(url) as client, asyncio.TaskGroup() as group:
        tasks = {}
        for seed in range(REQUESTS):
            request = f"{name}-{seed}"
            words = {"prompt": task(seed)[0], "max_tokens": 2 * ANSWER_BYTES}
            headers = {"X-Request-Id": request}
            tasks[request] = group.create_task(ask(client, words | {"extra_headers": headers}))
    return {request: asked.result() for request, asked in tasks.items()}


def task(seed: int) -> tuple[str, str]:
    """A prompt and its only right answer."""
    return make_prompt("copy", len(COPY_HEADER) + ANSWER_BYTES + 1, seed)


def ttft_p99(answers: Mapping[str, Answer]) -> float:
    seconds = sorted(answer.ttft_seconds for answer in answers.values())
    return seconds[int(0.99 * (len(seconds) - 1))]


FORMS: Final = [
    pytest.param(Role.MIXED, 1, id="one pool"),
    pytest.param(Role.DECODE, 3, id="two pools, three routers"),
    pytest.param(Role.MIXED, 3, id="one pool, three routers", marks=pytest.mark.full),
    pytest.param(Role.DECODE, 1, id="two pools", marks=pytest.mark.full),
]
"""Role of the engines that answer, and routers."""


@pytest.fixture
def burst(kubectl: Kubectl, role: Role, routers: int) -> Iterator[Burst]:
    burst = Burst(kubectl, f"burst-{role}-{routers}", role)
    service = burst.scaled.service
    with altered_in_config_map(kubectl, CONFIG_MAP):
        service.apply(burst_service(service.name, role, routers))
        service.wait_for("Updated", "True")
        yield burst
        service.delete()
        service.wait_until_children_are_gone()


@pytest.mark.parametrize(("role", "routers"), FORMS)
def test_what_waits_moves_to_new_engines(
    cluster: Cluster, burst: Burst, capsys: pytest.CaptureFixture[str]
) -> None:
    scaled = burst.scaled
    (old,), finished = burst.engines(), burst.finished_requests()
    with reach(cluster, NAMESPACE, scaled.service.name) as url:
        with watched_ready_times(scaled.kubectl, scaled.service) as ready:
            growing = asyncio.run(_burst(url, "burst-1"))
        first = burst.first_tokens(growing)
        grown = asyncio.run(_burst(url, "burst-2"))
    new = [engine.name for engine in burst.engines() if engine.name != old.name]
    waits = {name: first.get(name, inf) - ready[name] for name in new}
    start = min(scaled.start_seconds())
    with capsys.disabled():
        seconds = {
            "ttft_p99": ttft_p99(growing),
            "ttft_p99_of_three_engines": ttft_p99(grown),
            "start": start,
            **{f"{name} waits": wait for name, wait in waits.items()},
        }
        print(json.dumps({name: round(value, 1) for name, value in seconds.items()}))
        print("\n".join(note for _, note in scaled.decisions()))
    for answers in (growing, grown):
        assert [answer.text for answer in answers.values()] == [task(n)[1] for n in range(REQUESTS)]
    assert len(waits) == MOST - LEAST
    assert max(waits.values()) <= WORK_SECONDS
    assert ttft_p99(growing) <= TTFT_RATIO * (ttft_p99(grown) + start)
    assert burst.ledger() == Ledger(answered=2 * REQUESTS)
    assert burst.finished_requests() == finished + 2 * REQUESTS, "one was computed twice"


@pytest.mark.full
@pytest.mark.parametrize(("role", "routers"), [(Role.MIXED, 3), (Role.DECODE, 3)])
@pytest.mark.parametrize("killed", ["engine", "router"])
def test_nothing_is_lost_though_one_is_killed_while_requests_move(
    cluster: Cluster, burst: Burst, killed: str
) -> None:
    """An answer breaks off only where its own router was killed."""
    (engine,), (router, *others) = burst.engines(), burst.routers()
    with (
        reach(cluster, NAMESPACE, burst.scaled.service.name) as url,
        ThreadPoolExecutor(1) as pool,
    ):
        killing = pool.submit(
            burst.kill_once_requests_move, engine if killed == "engine" else router
        )
        answers = list(asyncio.run(_burst(url, "burst-1")).values())
        assert killing.result(), "no request has moved"
    whole = [number for number, answer in enumerate(answers) if not answer.error]
    assert [answers[number].text for number in whole] == [task(number)[1] for number in whole]
    assert (len(whole) == REQUESTS) == (killed == "engine"), "none was at the router"
    ledger = burst.ledger(others if killed == "router" else None)
    assert (ledger.lost, ledger.refused, ledger.open) == (0, 0, 0)
    assert ledger.answered + ledger.resumed <= len(whole)
    assert killed == "router" or ledger.answered + ledger.resumed == REQUESTS
