"""Fixtures of the tests that run a bare cluster of their own, beside the user's if there is one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.bare.containerd import write_static_image
from e2e.cluster.command import run
from e2e.cluster.providers.bare import BareCluster
from e2e.cluster.toolchain.binaries import ensure_binaries
from e2e.cluster.toolchain.containerd import ensure_containerd
from e2e.cluster.toolchain.golang import ensure_go
from e2e.cluster.toolchain.prerequisites import NODE_PACKAGES, ensure_packages

PROBE_IMAGE = "sluice.local/probe:1"


@pytest.fixture(scope="session")
def prepared() -> None:
    """Packages and programs, so that no test counts them as its own traces."""
    if os.geteuid() != 0:
        pytest.skip("the bare cluster needs root; where there is Docker, `make up` uses kind")
    ensure_packages(NODE_PACKAGES)
    ensure_binaries()
    ensure_containerd()


@pytest.fixture(scope="session")
def probe_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image of the test program in `probe/`."""
    folder = tmp_path_factory.mktemp("probe")
    environment = {**os.environ, "CGO_ENABLED": "0"}
    source = Path(__file__).parent / "probe"
    run([ensure_go(), "build", "-o", folder / "probe", "."], cwd=source, env=environment)
    write_static_image(folder / "probe", PROBE_IMAGE, folder / "probe.tar")
    return folder / "probe.tar"


@pytest.fixture(scope="module")
def cluster(prepared: None, probe_archive: Path) -> Iterator[BareCluster]:
    """A running cluster with the probe's image."""
    made = BareCluster("test-cluster")
    try:
        made.up()
        made.load_image(probe_archive)
        yield made
    finally:
        made.down()


@pytest.fixture
def another(prepared: None) -> Iterator[BareCluster]:
    """A cluster that the test brings up itself."""
    made = BareCluster("test-another")
    yield made
    made.down()
