"""What `make up` says at its end."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from e2e.cluster.providers.kind import KindCluster
from e2e.up import print_next_steps


def test_next_steps_lead_ones_own_tools_to_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "with space"))
    cluster = KindCluster("sluice", "docker")
    print_next_steps(cluster, "m")
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if "KUBECONFIG" in line)
    assert f"KUBECONFIG={cluster.kubeconfig}" in shlex.split(line)
    (line,) = (line for line in lines if "export PATH" in line)
    folder, found = line.split("PATH=")[1].split("   ")[0].split(":")
    assert (Path(folder, "sluice").exists(), found) == (True, "$PATH")
