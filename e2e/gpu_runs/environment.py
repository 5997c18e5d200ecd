"""The Python that cases run with: one with all packages where this machine can have it, else the
one that is here and brings torch, with the wheels of a folder that was carried along.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "gpu"
FOLDERS = ("", "runtime", "kernels", "operator")
"""Folders of the tree from which modules are imported."""


class EnvironmentFailedError(Exception):
    """The environment cannot be made; `str()` is one line that says why."""


@dataclass(frozen=True)
class Environment:
    python: Path
    packages: tuple[Path, ...] = ()

    def variables(self, inherited: Mapping[str, str], *, compiles: bool) -> dict[str, str]:
        """Environment variables of a case. `compiles`: whether nvcc may make kernels; without it a
        missing kernel fails at once."""
        path = [*self.packages, *(ROOT / folder for folder in FOLDERS)]
        return {
            **inherited,
            "FLASHINFER_DISABLE_JIT": "" if compiles else "1",
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": inherited.get("PYTHONPYCACHEPREFIX") or str(CACHE / "bytecode"),
            "HF_HUB_OFFLINE": "1",
        }


def environment(wheels: Path | None) -> Environment:
    """The environment made of `wheels`; without them, the one that uv makes.

    Raises:
        EnvironmentFailedError: packages could not be had.
    """
    if wheels is not None:
        return _from_wheels(wheels, CACHE / "site")
    uv = shutil.which("uv") or str(_uv_of_setup())
    folder = CACHE / "venv"
    words = [uv, "sync", "--frozen", "--inexact", "--no-default-groups", "--no-install-project"]
    words += ["--extra=engine", "--extra=gpu", "--group=gpu-runs"]
    _run(words, {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)})
    return Environment(folder / "bin" / "python")


def _from_wheels(wheels: Path, site: Path) -> Environment:
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise EnvironmentFailedError(f"{wheels} has no wheels; scripts/gpu-wheels makes them")
    names = "\n".join(file.name for file in files)
    mark = site / "wheels"
    if not mark.is_file() or mark.read_text() != names:
        shutil.rmtree(site, ignore_errors=True)
        words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        _run([*words, "--no-compile", "--target", str(site), *map(str, files)], os.environ)
        mark.write_text(names)
    return Environment(Path(sys.executable), (site,))


def _uv_of_setup() -> Path:
    cache = os.environ.get("SLUICE_CACHE") or str(
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluice"
    )
    return Path(cache) / "uv" / "bin" / "uv"


def _run(words: list[str], variables: Mapping[str, str]) -> None:
    try:
        subprocess.run(words, cwd=ROOT, env=dict(variables), check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise EnvironmentFailedError(f"{words[0]}: {error}") from None
