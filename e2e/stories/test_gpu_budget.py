"""A platform engineer gives a service a budget of GPUs, which holds at every instant, and a cluster
without room for more is named.

The GPUs are pretended: the node says that it has them, and a test's engine image says so too.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.gpus import ENV, GPUS_ON_NODE
from e2e.stories.load import load, long_prompts
from e2e.stories.pods import poll
from e2e.stories.scaled import Scaled
from e2e.stories.service import NAMESPACE
from e2e.stories.test_autoscaling import BURST_CLIENTS, GROWN_SECONDS, ROLES, scaled_service

BUDGET = 3


def budgeted(image: str, budget: int) -> dict[str, Any]:
    """Two pools of one GPU an engine, which would grow to eight."""
    made = scaled_service("budget", least=1, most=4, router={"replicas": 1})
    made["spec"]["engine"] |= {"image": image, "dtype": "float32"}
    made["spec"]["autoscaling"] |= {"gpuBudget": budget}
    made["spec"] |= {"accelerator": {"count": 1}, "template": {"env": ENV}}
    return made


class Watched:
    """The most pods that held or asked for GPUs at any instant, by a watch of every change."""

    def __init__(self) -> None:
        self.most = 0
        self._holding: set[str] = set()

    def change(self, event: Mapping[str, Any]) -> None:
        pod = event["object"]
        name, phase = pod["metadata"]["name"], pod["status"].get("phase")
        over = event["type"] == "DELETED" or phase in ("Succeeded", "Failed")
        if over or pod["metadata"]["labels"].get("serving.sluice.dev/role") not in ROLES:
            self._holding.discard(name)
        else:
            self._holding.add(name)
        self.most = max(self.most, len(self._holding))


@contextmanager
def watched(kubectl: Kubectl) -> Iterator[Watched]:
    """Follows the pods of the service inside the block."""
    argv = kubectl.argv(
        "get", "pods", "-n", NAMESPACE, "-l", "serving.sluice.dev/service=budget", "--watch",
        "--output-watch-events", "-o", "json",
    )  # fmt: skip
    seen, process = Watched(), subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    follower = threading.Thread(target=_follow, args=(process, seen))
    follower.start()
    try:
        yield seen
    finally:
        process.terminate()
        follower.join()
        process.communicate()


def _follow(process: subprocess.Popen[str], seen: Watched) -> None:
    assert process.stdout is not None
    decoder, text = json.JSONDecoder(), ""
    for line in process.stdout:
        text += line
        try:
            event, end = decoder.raw_decode(text)
        except json.JSONDecodeError:
            continue  # the rest of it is to come
        seen.change(event)
        text = text[end:].lstrip()


@pytest.mark.full  # tests/operator/service/test_budget.py has any sequence of scalings
def test_a_budget_holds_at_every_instant_and_no_room_is_named(
    cluster: Cluster, kubectl: Kubectl, pretended: str, gpu_node: str
) -> None:
    found = Scaled(kubectl, "budget")
    with watched(kubectl) as seen:
        found.service.apply(budgeted(pretended, BUDGET))
        found.service.wait_for("Updated", "True")
        try:
            with (
                reach(cluster, NAMESPACE, "budget") as url,
                load(url, BURST_CLIENTS) as burst,
                long_prompts(url, BURST_CLIENTS) as prompts,
            ):
                full = poll(lambda: sum(found.ready().values()) == BUDGET, GROWN_SECONDS)
                assert full, f"{found.replicas()}: {found.scaling()}"
                burst.wait_for_more(BURST_CLIENTS)
                assert poll(lambda: seen.most >= BUDGET, GROWN_SECONDS), "the watch is silent"
                assert seen.most == BUDGET
                found.service.apply(budgeted(pretended, 2 * GPUS_ON_NODE))
                named = poll(lambda: "lock" in str(found.scaling()), GROWN_SECONDS)
                assert named, f"{found.replicas()}: {found.scaling()}"
                full = poll(lambda: sum(found.ready().values()) == GPUS_ON_NODE, GROWN_SECONDS)
                assert full, f"{found.replicas()}: {found.scaling()}"
            assert burst.wrong == prompts.wrong == []
        finally:
            found.service.delete()
        found.service.wait_until_children_are_gone()
