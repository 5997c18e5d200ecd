"""KWOK, which plays the kubelets of nodes that are not there: built from its Go module, and cached.

The module's checksum is checked by Go itself. Knows nothing of what it is run for.
"""

from __future__ import annotations

import os
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.progress import Step
from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.golang import ensure_go

VERSION = "v0.7.0"
PACKAGE = "sigs.k8s.io/kwok/cmd/kwok"


def ensure_kwok(cache: Path | None = None) -> Path:
    """The cached program, or a new build (2 minutes on 2 cores with an empty Go cache)."""
    folder = (cache or cache_directory()) / f"kwok-{VERSION}"
    if not folder.exists():
        _build(folder)
    return folder / "kwok"


def _build(folder: Path) -> None:
    # Built beside and renamed at the end: a folder of this name is always complete.
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(partial)}
    argv: list[str | Path] = ["nice", "-n", "10", ensure_go(), "install", f"{PACKAGE}@{VERSION}"]
    with Step(f"Building KWOK {VERSION} (2 minutes the first time)"):
        run(argv, env=environment)
    partial.rename(folder)
