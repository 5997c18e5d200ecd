"""The API server of the operator's tests, with Sluice's kinds. All workers of a run share one that
the run starts and stops."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest
from xdist.workermanage import WorkerController

from e2e.cluster.controlplane_only import ControlPlane, control_plane
from e2e.cluster.errors import CommandFailedError
from tests.patience import PATIENCE_SECONDS

ROOT: Final = Path(__file__).parents[3]
CONTROLLERS: Final = ("garbage-collector-controller", "clusterrole-aggregation-controller")
OWN_PLANE: Final = pytest.mark.xdist_group("own-plane")
"""For tests that others would notice, or that notice others: an outage, kinds, nodes, all that
operators ask. They run in one worker, which has an API server for them."""
DIRECTORY: Final = "plane"
"""What a worker is told: where the shared one has its files."""


@contextmanager
def installed_plane() -> Iterator[ControlPlane]:
    """etcd, API server and two controllers, with Sluice's kinds, and the rights to them."""
    with control_plane(CONTROLLERS) as running:
        install(running)
        yield running


def install(running: ControlPlane) -> None:
    """Sluice's kinds and rights; returns when the kinds are served."""
    until_done(running, "apply", "--server-side", "-k", str(ROOT / "manifests" / "base"))
    until_done(running, "wait", "--for=condition=Established", "crd", "--all")
    wait_until_served(running)


def wait_until_served(running: ControlPlane) -> None:
    """New kinds are not in the index at once, and their first requests are answered with 429."""
    until_done(running, "get", "inferenceservices.serving.sluice.dev,enginepools", "-A")


def until_done(running: ControlPlane, *words: str) -> None:
    """Tries a command of kubectl until it succeeds: an API server that has just started, or has new
    kinds, refuses some requests."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            running.kubectl(*words)
        except CommandFailedError:
            if time.monotonic() > deadline:
                raise
        else:
            return


class SharedPlane:
    """A plugin of the process that starts the workers."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._directory: Path | None = None

    def pytest_configure_node(self, node: WorkerController) -> None:
        if self._directory is None:
            self._directory = self._stack.enter_context(installed_plane()).directory
        node.workerinput[DIRECTORY] = str(self._directory)

    def pytest_unconfigure(self) -> None:
        self._stack.close()
