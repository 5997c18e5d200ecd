"""A platform engineer lets two pools follow the load: a burst makes both grow, quiet shrinks them.

The application developer, whose client does not retry, loses nothing meanwhile."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from sluice_contract.cluster.labels import Role

from e2e.cluster.provider import Cluster
from e2e.kubectl import Kubectl
from e2e.reach import reach
from e2e.stories.load import load, long_prompts
from e2e.stories.pods import poll
from e2e.stories.scaled import Scaled
from e2e.stories.service import NAMESPACE, disaggregated_service, scaled_between
from e2e.up import SAMPLE

AUTOSCALED = SAMPLE.with_name("autoscaled.yaml")
ROLES = (Role.PREFILL, Role.DECODE)
ONE_EACH, TWO_EACH = dict.fromkeys(ROLES, 1), dict.fromkeys(ROLES, 2)
GROWN_SECONDS = 180
SHRUNK_SECONDS = 420
BURST_CLIENTS = 24
BUSY = {"maxRunningRequests": 4, "drainSeconds": 30}
"""Engine settings with few running requests, so that a burst queues on a small machine too."""
EAGER = {"target": {"queueMilliseconds": 200, "prefillQueue": 2, "decodeQueue": 2}}


def scaled_service(name: str, least: int, most: int, **spec: Any) -> dict[str, Any]:
    """Two pools that move between `least` and `most` small engines."""
    made = disaggregated_service(name, prefill=1, decode=1)
    sample = yaml.safe_load(AUTOSCALED.read_text())["spec"]
    made["spec"] |= {"engine": sample["engine"] | BUSY, "autoscaling": EAGER, **spec}
    return scaled_between(least, most, made)


@pytest.fixture
def scaled(kubectl: Kubectl) -> Iterator[Scaled]:
    found = Scaled(kubectl, "scaled")
    found.service.apply(scaled_service("scaled", least=1, most=2, router={"replicas": 2}))
    found.service.wait_for("Updated", "True")
    yield found
    found.service.delete()
    found.service.wait_until_children_are_gone()


def makes_both_pools_grow(scaled: Scaled, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A burst without a lost request; prints how soon engines were ready."""
    assert scaled.replicas() == ONE_EACH
    with load(url, BURST_CLIENTS) as burst, long_prompts(url, BURST_CLIENTS) as prompts:
        grown = poll(lambda: scaled.ready() == TWO_EACH, GROWN_SECONDS)
        assert grown, f"{scaled.replicas()}, {scaled.ready()}: {scaled.scaling()}"
        burst.wait_for_more(BURST_CLIENTS)
    assert burst.wrong == prompts.wrong == []
    with capsys.disabled():
        took = [round(seconds, 1) for seconds in scaled.start_seconds()]
        print(json.dumps({"decision_to_ready_seconds": took}))
        print("\n".join(note for _, note in scaled.decisions()))
    active = scaled.service.condition("ScalingActive")
    assert active["status"] == "True", active


def test_a_burst_makes_both_pools_grow(
    cluster: Cluster, scaled: Scaled, capsys: pytest.CaptureFixture[str]
) -> None:
    with reach(cluster, NAMESPACE, scaled.service.name) as url:
        makes_both_pools_grow(scaled, url, capsys)


@pytest.mark.full  # engines stay for a minute or more after a burst
def test_quiet_shrinks_both_pools(
    cluster: Cluster, scaled: Scaled, capsys: pytest.CaptureFixture[str]
) -> None:
    with reach(cluster, NAMESPACE, scaled.service.name) as url, load(url, 2) as quiet:
        makes_both_pools_grow(scaled, url, capsys)
        shrunk = poll(lambda: scaled.replicas() == ONE_EACH, SHRUNK_SECONDS)
        assert shrunk, f"{scaled.replicas()}: {scaled.scaling()}"
        quiet.wait_for_more(6)
    assert quiet.wrong == []


@pytest.mark.full  # an idle service keeps its engines for five minutes
def test_both_pools_leave_zero_with_the_first_request_and_go_back_to_it(
    cluster: Cluster, kubectl: Kubectl
) -> None:
    found, none = Scaled(kubectl, "asleep"), dict.fromkeys(ROLES, 0)
    found.service.apply(scaled_service("asleep", least=0, most=1, router={"replicas": 1}))
    found.service.wait_for_reason("Ready", "ScaledToZero")
    try:
        assert found.replicas() == none
        with reach(cluster, NAMESPACE, "asleep") as url:
            with load(url, clients=4) as tally:  # each waits until both pools have an engine
                tally.wait_for_more(8)
                assert found.ready() == dict.fromkeys(ROLES, 1)
            assert tally.wrong == []
        asleep = poll(lambda: found.replicas() == none, SHRUNK_SECONDS)
        assert asleep, f"{found.replicas()}: {found.scaling()}"
    finally:
        found.service.delete()
    found.service.wait_until_children_are_gone()
