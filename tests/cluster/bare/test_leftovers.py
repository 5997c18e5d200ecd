"""`down` leaves nothing on the machine, whatever happened before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster.bare.node_process import find_node
from e2e.cluster.bare.state import remaining_layout, state_directory
from e2e.cluster.command import run
from e2e.cluster.providers.bare import BareCluster
from tests.cluster.bare.leftovers import Traces, look
from tests.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
MOMENT_SECONDS = 60.0
LAYOUT = remaining_layout(state_directory(), "test-another")


def added_soon(before: Traces) -> dict[str, list[str]]:
    """What was added, after the kernel had a moment to finish removing links and routes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (added := look(LAYOUT.node_file).added_since(before)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return added


# Moments of an `up`, in the order in which they come.
MOMENTS: dict[str, Callable[[], bool]] = {
    "directory made": lambda: LAYOUT.state.exists(),
    "certificates made": lambda: LAYOUT.kubeconfig.exists(),
    "node described": lambda: LAYOUT.node_file.exists(),
    "node started": lambda: find_node(LAYOUT) is not None,
    "runtime started": lambda: LAYOUT.containerd_socket.exists(),
    "kubelet started": lambda: (LAYOUT.logs / "kubelet.log").exists(),
}
TELLING = ("node started", "kubelet started")
"""When there is a process that nobody has noted much about, and when there is most."""


def test_a_cluster_that_ran_pods_leaves_nothing(another: BareCluster, probe_archive: Path) -> None:
    before = look(LAYOUT.node_file)
    another.up()
    another.load_image(probe_archive)
    run(another.kubectl_argv("run", "probe", "--image=sluice.local/probe:1", "--port=8080"))
    run(another.kubectl_argv("expose", "pod", "probe"))
    run(another.kubectl_argv("wait", "--for=condition=Ready", "pod/probe", "--timeout=60s"))
    # The comparison sees a cluster that is there; else an empty difference would mean nothing.
    added = look(LAYOUT.node_file).added_since(before)
    assert {"processes", "cgroups", "links", "routes", "folders"} <= added.keys()
    another.down()
    assert added_soon(before) == {}


@pytest.mark.parametrize(
    "moment",
    [each if each in TELLING else pytest.param(each, marks=pytest.mark.full) for each in MOMENTS],
)
def test_an_up_that_is_killed_leaves_nothing_after_down(another: BareCluster, moment: str) -> None:
    before = look(LAYOUT.node_file)
    environment = {**os.environ, "CLUSTER": "bare", "SLUICE_CLUSTER": "test-another"}
    command = [sys.executable, "-m", "e2e.cluster", "up"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as up:
        deadline = time.monotonic() + MOMENT_SECONDS
        while not MOMENTS[moment]():
            assert time.monotonic() < deadline, f"never came: {moment}"
            assert up.poll() is None, f"ended before: {moment}"
        up.send_signal(signal.SIGKILL)
    another.down()
    assert added_soon(before) == {}


def test_down_without_a_cluster_does_nothing(another: BareCluster) -> None:
    before = look(LAYOUT.node_file)
    another.down()
    assert added_soon(before) == {}
    assert another.status().running is False


def test_down_finds_a_cluster_whose_folder_was_deleted(another: BareCluster) -> None:
    before = look(LAYOUT.node_file)
    another.up()
    run(["rm", "-rf", LAYOUT.state])
    another.down()
    assert added_soon(before) == {}
