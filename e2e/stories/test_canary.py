"""A platform engineer changes a service that judges its canary, and looks away. A build that is
alike gets all requests. One that fails, crashes or is slow ends, and the former engines stay.

**The engines** are real ones of the small model, altered by variables of their environment
(`e2e/altered_engine.py`): a change of these is the change of the build. Requests come at a steady
rate, each with a key of its own, from clients that do not retry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from sluice_contract.cluster.labels import Role

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.model.tasks import make_prompt
from e2e.reach import reach
from e2e.stories.altered import altered_in_config_map, altered_template
from e2e.stories.pods import pods, poll
from e2e.stories.ramp import PROMPT_BYTES, Answer, ask, client_of
from e2e.stories.service import NAMESPACE, Service, chat_service

NAME: Final = "canary"
RATE: Final = 40.0
"""Requests a second."""
TOKENS: Final = 4
STEP_SECONDS: Final = 0.05
CANARY: Final = {"steps": [25], "minutes": 2, "judge": {"marginPoints": 20}}
JUDGED_SECONDS: Final = 420
"""Seconds until a verdict, with the starts of engines, of which the step has at least 120."""
LEFT_SECONDS: Final = 60
"""Seconds until engines of the revision that lost have gone."""


def judged_service(**variables: float) -> dict[str, Any]:
    """The service of two engines, altered so, whose changes are judged."""
    paced = {"PACED_STEP_SECONDS": STEP_SECONDS} | variables
    made = chat_service(NAME, replicas=2, template=altered_template(NAME, **paced))
    made["spec"] |= {"rollout": {"canary": CANARY}}
    made["spec"]["engine"] |= {"threads": 1}
    return made


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


@pytest.fixture(scope="module")
def judged(kubectl: Kubectl) -> Iterator[Service]:
    service = Service(kubectl, NAME)
    with altered_in_config_map(kubectl, NAME):
        service.apply(judged_service())
        service.wait_for("Updated", "True")
        yield service
        service.delete()
        service.wait_until_children_are_gone()


def engines(kubectl: Kubectl, service: Service) -> set[str]:
    return {pod.name for pod in pods(kubectl, service, Role.MIXED)}


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"FAILING_SHARE": 0.05}, "CanaryWorse"),
        pytest.param({"CRASHING_SHARE": 0.1}, "CanaryWorse", marks=pytest.mark.full),
        pytest.param(
            {"PACED_STEP_SECONDS": 3 * STEP_SECONDS}, "CanaryWorse", marks=pytest.mark.full
        ),
        ({"SAME_AS_BEFORE": 1.0}, "AllReady"),
    ],
    ids=["fails", "crashes", "slow", "alike"],
)
def test_a_change_is_judged(
    cluster: Cluster,
    kubectl: Kubectl,
    judged: Service,
    variables: dict[str, float],
    reason: str,
) -> None:
    """Only what a failing build itself has answered is lost."""
    before = engines(kubectl, judged)
    with reach(cluster, NAMESPACE, NAME) as url, steady_load(url) as given:
        judged.apply(judged_service(**variables))
        ended = judged.wait_for_reason("Updated", reason, JUDGED_SECONDS)
        kept = reason == "CanaryWorse"
        left = poll(lambda: (engines(kubectl, judged) == before) is kept, LEFT_SECONDS)
        assert left, ended["message"]
        asked = len(given)
        assert poll(lambda: len(given) > asked + RATE, LEFT_SECONDS), "no answers any more"
    lost = [answer.error for answer in given if answer.error]
    print(f"{len(lost)} of {len(given)} requests failed; {ended['message']}")
    if "FAILING_SHARE" in variables:
        assert lost
        assert all("500" in error for error in lost), lost
    else:
        assert lost == []
    judged.apply(judged_service(**({} if kept else variables)))
