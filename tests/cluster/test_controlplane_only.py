"""etcd and API server alone: an outage and its end, roles, controllers, and nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.controlplane_only import DIRECTORY_PREFIX, ControlPlane, control_plane
from e2e.cluster.errors import CommandFailedError

pytestmark = [pytest.mark.apiserver, pytest.mark.xdist_group("control-plane")]
# A shell starts its background jobs with SIGINT ignored, and children inherit that.
HOLD = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from e2e.cluster.controlplane_only import control_plane
with control_plane() as plane:
    print(plane.kubeconfig.parent, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    with control_plane() as running:
        yield running


def processes_of(directory: Path) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if str(directory) in (folder / "cmdline").read_text():
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_data_and_address_outlive_an_outage(plane: ControlPlane) -> None:
    plane.kubectl("create", "namespace", "kept")
    url = plane.url
    plane.stop_apiserver()
    with pytest.raises(CommandFailedError, match="refused"):
        plane.kubectl("get", "namespace", "kept")
    plane.start_apiserver()
    assert plane.url == url
    assert "kept" in plane.kubectl("get", "namespace", "kept")


def test_another_user_may_do_what_roles_grant(plane: ControlPlane) -> None:
    other = f"--kubeconfig={plane.user_kubeconfig('reader', ['readers'])}"
    with pytest.raises(CommandFailedError, match="forbidden"):
        plane.kubectl(other, "get", "configmaps")
    # Not a role such as `view`: those are put together by a controller.
    plane.kubectl("create", "role", "read", "--verb=list", "--resource=configmaps")
    plane.kubectl("create", "rolebinding", "read", "--role=read", "--group=readers")
    plane.kubectl(other, "get", "configmaps")


def test_a_write_is_in_the_audit_log_when_its_answer_is_out(plane: ControlPlane) -> None:
    plane.kubectl("create", "configmap", "audited")
    lines = map(json.loads, plane.audit_log.read_text().splitlines())
    written = [line for line in lines if line["verb"] == "create"]
    assert [line["objectRef"].get("name") for line in written][-1] == "audited"


def test_named_controllers_act() -> None:
    controllers = ["deployment-controller", "replicaset-controller"]
    with control_plane(controllers) as plane:
        plane.kubectl("create", "deployment", "acted-on", "--image=none", "--replicas=2")
        replicas = "--for=jsonpath={.status.unavailableReplicas}=2"
        plane.kubectl("wait", replicas, "deployment/acted-on", "--timeout=30s")
        directory = plane.kubeconfig.parent
    assert not directory.exists()
    assert processes_of(directory) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_an_owner_that_was_ended(
    how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What other workers start would sweep here too.
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    owner = subprocess.Popen(
        [sys.executable, "-c", HOLD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with owner:
        assert owner.stdout is not None
        directory = Path(owner.stdout.readline().strip())
        assert processes_of(directory)
        owner.send_signal(how)
        owner.wait()
    assert directory.parent == tmp_path
    assert directory.name.startswith(DIRECTORY_PREFIX)
    if how == signal.SIGKILL:
        # Nobody is left to delete the files; the next one to start does.
        assert directory.exists()
        with control_plane():
            assert not directory.exists()
    assert list(tmp_path.iterdir()) == []
    assert processes_of(directory) == []
