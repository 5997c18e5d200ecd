"""Engines of two pools that take the other role: nothing is loaded, and no request is lost."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any

import httpx
import pytest
from sluice_contract.wire.handover import Bound
from sluice_contract.wire.private_calls import PRIVATE_HEADER, signed_call

from tests.busy_machine import Stopwatch
from tests.disaggregated.asking import Request, ask, ask_all, check, of_every_kind, task, text
from tests.disaggregated.engines import KEY, EngineProcess
from tests.disaggregated.service import Service, running_service
from tests.runtime.launch.processes import HANG_SECONDS, descendants

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("disaggregated")]

IDLE_SECONDS = 2.0
"""Within which an idle engine takes another role."""
ENDLESS = text(100, 2, max_tokens=1200)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running_service(tmp_path_factory.mktemp("service"), 2, 2) as service:
        yield service


def take_role(engine: EngineProcess, role: str, **fields: Any) -> float:
    """The seconds that it says it took."""
    body = json.dumps({"role": role, "epoch": engine.load().epoch, **fields}).encode()
    bound = Bound("/role", hashlib.sha256(body).hexdigest())
    headers = {
        "X-Request-Id": "role-change",
        PRIVATE_HEADER: signed_call(KEY, "role-change", bound, time.time()),
    }
    url = engine.url + "/role"
    answer = httpx.post(url, content=body, headers=headers, timeout=HANG_SECONDS)
    assert answer.status_code == 200, answer.text
    assert answer.json()["role"] == engine.load().role == role
    return float(answer.json()["seconds"])


def swap(service: Service) -> list[float]:
    """All engines at the same time."""
    others = {"prefill": "decode", "decode": "prefill"}
    with ThreadPoolExecutor() as threads:
        changes = [
            threads.submit(take_role, engine, others[engine.load().role])
            for engine in service.engines
        ]
        seconds = [change.result() for change in changes]
    service.prefills, service.decodes = service.decodes, service.prefills
    service.known()
    return seconds


def requests() -> list[Request]:
    tasks = [task(kind, 120, seed) for kind in ("copy", "lookup") for seed in (0, 1)]
    return [*tasks, task("copy", 512, 3), text(1000, 0), *of_every_kind()]


def test_pools_that_swap_roles_answer_as_before(service: Service) -> None:
    asked = requests()
    expected = ask_all(service.url, asked)
    processes = [descendants(engine.process.popen.pid) for engine in service.engines]
    for _ in range(2):
        service.idle()
        watch = Stopwatch()
        assert median(swap(service)) < IDLE_SECONDS, "four at once, on few cores"
        assert watch.seconds < 3 * IDLE_SECONDS
        for request, answer, before in zip(
            asked, ask_all(service.url, asked), expected, strict=True
        ):
            check(request, answer, before)
    service.idle()
    assert [descendants(engine.process.popen.pid) for engine in service.engines] == processes


def test_no_request_is_lost_while_engines_change_sides_under_load(service: Service) -> None:
    """One engine of each pool at a time, there and back."""
    asked = [task("copy", 200, seed) for seed in range(40)]
    first, second = service.prefills[0], service.decodes[0]
    with ThreadPoolExecutor(6) as clients:
        answers = [clients.submit(ask, service.url, request, stream=True) for request in asked]
        for engine, role in ((first, "decode"), (second, "prefill")):
            take_role(engine, role)
            service.known()
        for request, answer in zip(asked, answers, strict=True):
            check(request, answer.result())
    service.idle()
    take_role(first, "prefill")
    take_role(second, "decode")
    service.known()


def test_answers_that_take_too_long_go_on_elsewhere(service: Service) -> None:
    expected = ask(service.url, ENDLESS, stream=True)
    service.idle()
    with ThreadPoolExecutor(2) as clients:
        answers = [clients.submit(ask, service.url, ENDLESS, stream=True) for _ in range(2)]
        while not all(engine.load().figures.running_requests for engine in service.decodes):
            time.sleep(0.01)
        leaving, other = service.decodes
        assert take_role(leaving, "prefill", drain_seconds=0) < IDLE_SECONDS
        for answer in answers:
            assert answer.result() == expected
    assert other.load().role == "decode"
    service.idle()
    take_role(leaving, "decode")
    service.known()
