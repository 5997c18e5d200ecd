"""A platform engineer changes a service that judges its canary, and looks away. A build that is
alike gets all requests, whatever is killed meanwhile. One that fails, crashes, is slow or never
becomes ready ends, and the former engines stay.

**The engines** are real ones of the small model, altered by variables of their environment
(`e2e/altered_engine.py`): a change of these is the change of the build. Requests come at a steady
rate, each with a key of its own, from clients that do not retry."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from sluice_contract.cluster.labels import ROUTER_ROLE, Role

from e2e.cluster.provider import Cluster
from e2e.install import NAMESPACE as OPERATOR_NAMESPACE
from e2e.kubectl import Kubectl
from e2e.model.tasks import make_prompt
from e2e.reach import reach
from e2e.stories.altered import altered_in_config_map, altered_template
from e2e.stories.pods import pods, poll
from e2e.stories.ramp import PROMPT_BYTES, Answer, ask, client_of
from e2e.stories.service import KIND, NAMESPACE, Service, chat_service, disaggregated_service

NAME: Final = "canary"
RATE: Final = 40.0
"""Requests a second."""
TOKENS: Final = 4
STEP_SECONDS: Final = 0.05
CANARY: Final = {"steps": [25], "minutes": 2, "judge": {"marginPoints": 20}}
STARTUP_SECONDS: Final = 100
"""Seconds without progress until an engine is restarted. Two minutes later the canary is late,
which is before the second restart."""
JUDGED_SECONDS: Final = 420
"""Seconds until a verdict, with the starts of engines, of which the step has at least 120."""
LEFT_SECONDS: Final = 60
"""Seconds until engines of the revision that lost have gone."""
OPERATOR: Final = ("pod", "-n", OPERATOR_NAMESPACE, "-l", "app.kubernetes.io/name=sluice-operator")


class Judged(Service):
    """A service of two engines whose changes are judged: in one pool, or one for each leg."""

    def __init__(self, kubectl: Kubectl, form: str) -> None:
        super().__init__(kubectl, NAME)
        self.kubectl, self.form = kubectl, form
        self.serving: dict[str, float] = {}
        """Variables of the engines that serve."""

    def change(self, **variables: float) -> None:
        """Applies it with engines that are altered so."""
        paced = {"PACED_STEP_SECONDS": STEP_SECONDS} | variables
        spec: dict[str, Any] = {
            "template": altered_template(NAME, **paced),
            "rollout": {"canary": CANARY},
            "router": {"replicas": 2},
        }
        if self.form == "pools":
            made = disaggregated_service(NAME, prefill=1, decode=1, **spec)
        else:
            made = chat_service(NAME, replicas=2, **spec)
        made["spec"]["engine"] |= {"threads": 1, "startupSeconds": STARTUP_SECONDS}
        self.apply(made)

    def engines(self) -> set[str]:
        """Names of their pods."""
        return {pod.name for role in Role for pod in pods(self.kubectl, self, role)}


@contextmanager
def steady_load(url: str) -> Iterator[list[Answer]]:
    """Answers to requests that come at `RATE` until the block ends."""
    given, stopping = list[Answer](), threading.Event()

    async def answered(client: Any, seed: int) -> None:
        prompt, _ = make_prompt("copy", PROMPT_BYTES, seed)
        words = {"prompt": prompt, "max_tokens": TOKENS, "extra_body": {"ignore_eos": True}}
        given.append(await ask(client, words))

    async def load() -> None:
        async with client_of(url) as client, asyncio.TaskGroup() as group:
            seed = 0
            while not stopping.is_set():
                group.create_task(answered(client, seed := seed + 1))
                await asyncio.sleep(1 / RATE)

    thread = threading.Thread(target=asyncio.run, args=(load(),))
    thread.start()
    try:
        yield given
    finally:
        stopping.set()
        thread.join()


@contextmanager
def answering(cluster: Cluster) -> Iterator[list[Answer]]:
    """Answers to requests of the block, after which others are answered."""
    with reach(cluster, NAMESPACE, NAME) as url, steady_load(url) as given:
        yield given
        asked = len(given)
        assert poll(lambda: len(given) > asked + RATE, LEFT_SECONDS), "no answers any more"


@pytest.fixture(scope="module")
def judged(kubectl: Kubectl, request: pytest.FixtureRequest) -> Iterator[Judged]:
    service = Judged(kubectl, request.param)
    with altered_in_config_map(kubectl, NAME):
        service.change()
        service.wait_for("Updated", "True")
        yield service
        service.delete()
        service.wait_until_children_are_gone()


def lost(given: list[Answer]) -> list[str]:
    """Errors of the requests that were not answered."""
    errors = [answer.error for answer in given if answer.error]
    print(f"{len(errors)} of {len(given)} requests failed")
    return errors


@pytest.mark.parametrize(
    ("judged", "variables", "reason"),
    [
        pytest.param("mixed", {"FAILING_SHARE": 0.05}, "CanaryWorse", id="fails"),
        pytest.param(
            "mixed", {"CRASHING_SHARE": 0.1}, "CanaryWorse", marks=pytest.mark.full, id="crashes"
        ),
        pytest.param(
            "mixed",
            {"PACED_STEP_SECONDS": 3 * STEP_SECONDS},
            "CanaryWorse",
            marks=pytest.mark.full,
            id="slow",
        ),
        pytest.param(
            "mixed", {"NEVER_READY": 1}, "CanaryLate", marks=pytest.mark.full, id="never ready"
        ),
        pytest.param("mixed", {"SAME_AS_BEFORE": 1}, "AllReady", id="alike"),
        pytest.param(
            "pools", {"FAILING_SHARE": 0.05}, "CanaryWorse", marks=pytest.mark.full, id="pools fail"
        ),
        pytest.param(
            "pools", {"SAME_AS_BEFORE": 1}, "AllReady", marks=pytest.mark.full, id="pools alike"
        ),
    ],
    indirect=["judged"],
    scope="module",
)
def test_a_change_is_judged(
    cluster: Cluster, judged: Judged, variables: dict[str, float], reason: str
) -> None:
    """Only what a failing build itself has answered is lost."""
    before, kept = judged.engines(), reason != "AllReady"
    with answering(cluster) as given:
        judged.change(**variables)
        judged.wait_for("Updated", "False")
        print(judged.wait_for_reason("Updated", reason, JUDGED_SECONDS)["message"])
        if kept:
            assert poll(lambda: judged.engines() == before, LEFT_SECONDS), judged.engines()
        else:
            assert poll(lambda: before.isdisjoint(judged.engines()), LEFT_SECONDS)
    if "FAILING_SHARE" in variables:
        assert (errors := lost(given))
        assert all("500" in error for error in errors), errors
    else:
        assert lost(given) == []
    if kept:
        judged.change(**judged.serving)
        judged.wait_for("Updated", "True")
    else:
        judged.serving = variables


@pytest.mark.full
@pytest.mark.parametrize("judged", ["mixed"], indirect=True, scope="module")
def test_nothing_that_is_killed_changes_a_verdict(
    cluster: Cluster, kubectl: Kubectl, judged: Judged
) -> None:
    """The operator at the start, at the step and after it; a router; and the status is lost."""
    before, variables = judged.engines(), {"SAME_AS_BEFORE": 2.0}
    force = ("--force", "--grace-period=0")
    with answering(cluster) as given:
        judged.change(**variables)
        judged.wait_for_reason("Progressing", "RollingOut")
        kubectl.run("delete", *OPERATOR, *force)
        judged.wait_for_reason("Progressing", "CanaryStep")
        kubectl.run("delete", *OPERATOR, *force)
        router = pods(kubectl, judged, ROUTER_ROLE)[0].name
        kubectl.run("delete", "pod", router, "-n", NAMESPACE, "--wait=false")
        empty = json.dumps([{"op": "replace", "path": "/status", "value": {}}])
        words = ("--subresource=status", "--type=json", "-p", empty)
        kubectl.run("patch", KIND, NAME, "-n", NAMESPACE, *words)
        judged.wait_for_reason("Progressing", "CanaryStep")
        judged.wait_for_reason("Progressing", "RollingOut", JUDGED_SECONDS)
        kubectl.run("delete", *OPERATOR, *force)
        judged.wait_for_reason("Updated", "AllReady", JUDGED_SECONDS)
        assert poll(lambda: before.isdisjoint(judged.engines()), LEFT_SECONDS)
    assert lost(given) == []
    judged.serving = variables
