"""KEDA's operator and its metrics adapter, built from its module, and its manifests.

`go install` builds no module that replaces others in its go.mod, as KEDA's does. So the module is
downloaded, checked against the checksum below, and built where it lies. Its own go.sum checks its
dependencies.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError
from e2e.cluster.progress import Step
from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.golang import COMPILER_FLAGS, ensure_go

MODULE: Final = "github.com/kedacore/keda/v2"
VERSION: Final = "v2.21.0"
CHECKSUM: Final = "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="
PROGRAMS: Final = ("operator", "adapter")


@dataclass(frozen=True)
class Keda:
    """A folder with both programs and the module's `config`: kinds, roles, the APIService."""

    directory: Path

    @property
    def operator(self) -> Path:
        return self.directory / "operator"

    @property
    def adapter(self) -> Path:
        return self.directory / "adapter"

    @property
    def manifests(self) -> Path:
        return self.directory / "config"


def ensure_keda(cache: Path | None = None) -> Keda:
    """The cached build, or a new one: 3,700 packages, at the lowest priority and one at a time.

    Raises:
        ClusterError: the module is not the one that was looked at.
    """
    keda = Keda((cache or cache_directory()) / f"keda-{VERSION}")
    if not keda.directory.exists():
        _build(keda.directory)
    return keda


def _build(directory: Path) -> None:
    # Built under another name and renamed at the end: a folder of this name is always complete.
    partial = directory.with_name(f"{directory.name}.{os.getpid()}")
    try:
        with Step(f"Building KEDA {VERSION} (70 minutes the first time, on two busy cores)"):
            source = _download()
            shutil.copytree(source / "config", partial / "config", copy_function=shutil.copyfile)
            argv: list[str | Path] = ["nice", "-n", "19", ensure_go(), "build", "-p", "1"]
            argv += [COMPILER_FLAGS, "-buildvcs=false", "-ldflags", "-s -w", "-o", f"{partial}/"]
            packages = [f"./cmd/{program}" for program in PROGRAMS]
            run([*argv, *packages], cwd=source, env={**os.environ, "CGO_ENABLED": "0"})
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _download() -> Path:
    """The module's source, in Go's cache, which nobody may write to."""
    module = json.loads(run([ensure_go(), "mod", "download", "-json", f"{MODULE}@{VERSION}"]))
    if (checksum := module["Sum"]) != CHECKSUM:
        raise ClusterError(f"{MODULE} {VERSION} has checksum {checksum}; expected: {CHECKSUM}")
    return Path(module["Dir"])
