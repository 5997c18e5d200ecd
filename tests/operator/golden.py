"""Golden files: compared by default, written anew by `make golden`."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "golden"


def assert_golden(name: str, text: str) -> None:
    """`text` is what the golden file `name` holds; with SLUICE_WRITE_GOLDEN it becomes that."""
    path = FOLDER / name
    if os.environ.get("SLUICE_WRITE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path} is missing; write it with `make golden`"
    assert text == path.read_text(), f"{path} differs; if that is meant, run `make golden`"
