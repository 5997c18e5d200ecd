"""What the engine's image is checked with, outside an image."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.images.catalog import ROOT

pytestmark = pytest.mark.process


@pytest.mark.parametrize("broken", [False, True])
def test_it_says_whether_grammars_compile(tmp_path: Path, broken: bool) -> None:
    if broken:
        (tmp_path / "tvm_ffi.py").write_text("raise ImportError('built for another Python')\n")
    path = os.pathsep.join(map(str, (tmp_path, ROOT / "runtime", ROOT / "kernels")))
    done = subprocess.run(
        [sys.executable, ROOT / "images" / "check_engine.py"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == int(broken), done.stderr
    assert ("compile process does not start" in done.stderr) == broken
