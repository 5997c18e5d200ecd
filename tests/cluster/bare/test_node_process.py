"""A node is found by its command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from e2e.cluster.bare.layout import Layout
from e2e.cluster.bare.node_process import end_node


def test_a_node_that_another_checkout_started_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("e2e.cluster.bare.layout.MAXIMUM_SOCKET_PATH", 1000)
    layout, other = (Layout(name, 0, tmp_path / name) for name in ("sluice", "other"))
    script = tmp_path / "init.py"
    script.write_text("import sys; print(1, flush=True); sys.stdin.read()")
    command = [sys.executable, "-I", str(script), str(layout.node_file)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        end_node(other)
        assert process.poll() is None
        end_node(layout)
        assert process.wait(timeout=10) == -9
