"""Docker for as long as a test runs: the one that answers, else one that is started here and ended.

The daemon started here keeps to itself: its socket, images and state are its own, it has no bridge
and writes no rules, so what a cluster in it leaves is gone with it, but for images, which the next
run needs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from e2e.cluster.bare.cgroups import remove_cgroups
from e2e.cluster.command import succeeds
from e2e.cluster.toolchain.cache import cache_directory
from e2e.stories.pods import poll

SOCKET_SECONDS: Final = 60.0
END_SECONDS: Final = 60.0
CGROUP: Final = "sluice-test-docker"
RUNTIME: Final = Path(__file__).with_name("bounded_runc.py")


@contextmanager
def docker() -> Iterator[dict[str, str]]:
    """The environment in which `docker` and `kind` find it; skips where there is no way to one."""
    if shutil.which("docker") and succeeds(["docker", "info"]):
        yield dict(os.environ)
        return
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("Docker does not answer, and there is none to start: apt-get install docker.io")
    with tempfile.TemporaryDirectory(prefix="sluice-docker-", dir="/run") as folder:
        host = f"unix://{folder}/docker.sock"
        with (Path(folder) / "dockerd.log").open("w") as log:
            daemon = subprocess.Popen(_argv(Path(folder), host), stdout=log, stderr=log)
        try:
            answers = poll(lambda: succeeds(["docker", f"--host={host}", "info"]), SOCKET_SECONDS)
            assert answers, (Path(folder) / "dockerd.log").read_text()
            yield {**os.environ, "DOCKER_HOST": host}
        finally:
            daemon.terminate()
            daemon.wait(END_SECONDS)
            remove_cgroups(CGROUP)


def _argv(folder: Path, host: str) -> list[str]:
    return [
        "dockerd",
        f"--host={host}",
        f"--exec-root={folder}/state",
        f"--pidfile={folder}/pid",
        f"--data-root={cache_directory() / 'test-docker'}",
        f"--cgroup-parent=/{CGROUP}",
        f"--add-runtime=bounded={RUNTIME}",
        "--default-runtime=bounded",
        "--bridge=none",
        "--iptables=false",
        "--ip-forward=false",
        # Addresses for tests of network devices; bare clusters take theirs from the lower half.
        "--default-address-pool=base=198.19.128.0/17,size=24",
    ]
