"""What the engine's image is checked with, outside an image."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.images.catalog import ROOT

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("", ""),
        ("llguidance", "check_engine: grammars: built for another Python"),
        ("mooncake", "check_engine: Mooncake: built for another Python"),
    ],
)
def test_it_says_what_does_not_work(tmp_path: Path, broken: str, said: str) -> None:
    if broken:
        (tmp_path / f"{broken}.py").write_text("raise ImportError('built for another Python')\n")
    path = os.pathsep.join(map(str, (tmp_path, ROOT / "runtime", ROOT / "kernels")))
    done = subprocess.run(
        [sys.executable, ROOT / "images" / "check_engine.py"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == bool(broken), done.stderr
    assert said in done.stderr
