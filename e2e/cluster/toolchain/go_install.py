"""Programs built from Go modules, each once, and cached outside the tree.

A module's checksum is checked by Go itself. Knows no program.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.progress import Step, time_on_idle_cores
from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.golang import COMPILER_FLAGS, ensure_go


@dataclass(frozen=True)
class GoProgram:
    """A command of a Go module, at one version. `package` ends with the program's name; `beside`
    names other commands in that folder of the module, which are built with it."""

    package: str
    version: str
    beside: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.package.rpartition("/")[2]

    @property
    def packages(self) -> list[str]:
        """All packages to build, with the version."""
        folder = self.package.rpartition("/")[0]
        return [f"{folder}/{name}@{self.version}" for name in (self.name, *self.beside)]


def ensure_program(program: GoProgram, cache: Path | None = None) -> Path:
    """The cached program, or a new build (minutes on 2 cores with an empty Go cache)."""
    folder = (cache or cache_directory()) / f"{program.name}-{program.version}"
    if not folder.exists():
        _build(program, folder)
    return folder / program.name


def _build(program: GoProgram, folder: Path) -> None:
    # Built under another name and renamed at the end: a folder of this name is always complete.
    partial = folder.with_name(f"{folder.name}.{os.getpid()}")
    environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(partial)}
    argv: list[str | Path] = ["nice", "-n", "10", ensure_go(), "install", COMPILER_FLAGS]
    argv += ["-ldflags", "-s -w", *program.packages]
    with Step(f"Building {program.name} {program.version} ({time_on_idle_cores(2)})"):
        run(argv, env=environment)
    partial.rename(folder)
