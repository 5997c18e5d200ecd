"""A new user has Docker and runs `make up`: kind, the images, an answer; again; `make down`.

Takes minutes, and the first time several more: the node's image is made.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest

from e2e.cluster.command import run
from e2e.images.catalog import ROOT
from tests.cluster.docker import docker

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1800)]

AGAIN_SECONDS = 90.0
"""On a busy machine; on a quiet one it is a tenth of it."""
ANSWER = "answer    Kubernetes is"
LISTS = (("ps", "--all"), ("network", "ls"), ("volume", "ls"))
STORY = "e2e/stories/test_disaggregated.py"


@pytest.fixture(scope="module")
def environment() -> Iterator[dict[str, str]]:
    """Docker, and a cluster's name that nobody uses."""
    with docker() as found:
        yield {**found, "CLUSTER": "kind", "SLUICE_CLUSTER": "sluice-kind-test"}


def python(environment: dict[str, str], *words: str) -> str:
    return run([sys.executable, "-m", *words], env=environment, cwd=ROOT)


def docker_has(environment: dict[str, str]) -> dict[str, set[str]]:
    """All containers, networks and volumes."""
    return {
        words[0]: set(run(["docker", *words, "--quiet"], env=environment).split())
        for words in LISTS
    }


def test_up_answers_and_down_leaves_nothing(environment: dict[str, str]) -> None:
    before = docker_has(environment)
    try:
        assert ANSWER in python(environment, "e2e.up")
        started = time.monotonic()
        assert ANSWER in python(environment, "e2e.up")
        assert time.monotonic() - started < AGAIN_SECONDS
        assert "coredns" in python(environment, "e2e.cluster", "kubectl", "get", "pods", "-A")
        assert docker_has(environment) != before
    finally:
        python(environment, "e2e.cluster", "down")
    assert docker_has(environment) == before


def test_a_story_of_two_pools_goes_well_on_it(environment: dict[str, str]) -> None:
    said = python(environment, "pytest", "-m", "cluster and not full and not gpu", STORY)
    assert "passed" in said
    assert "skipped" not in said
