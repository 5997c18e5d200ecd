"""Other engines on a workload of ours, each in a virtual environment of its own.

The environments are made on first use, below the cache folder, from the package registry; the
versions are fixed here. A peer's script reads the workload as JSON and answers with one JSON line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from e2e.cluster.cache import cache_directory
from e2e.cluster.uv import find_uv

PEERS: Final[Mapping[str, tuple[str, ...]]] = {
    "openvino": ("openvino-genai==2026.4.1.0", "optimum-intel==2.2.0", "torch==2.15.0"),
}
"""What is installed for each; its script is `run_NAME.py` beside this file."""


def run_peer(name: str, work: Mapping[str, Any]) -> dict[str, float]:
    """`tokens`, `seconds` and `cpu_seconds` of a run, its start not counted."""
    script = Path(__file__).with_name(f"run_{name}.py")
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [_python(name), script],
        input=json.dumps(work),
        capture_output=True,
        text=True,
        check=False,
        env={**variables, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _python(name: str) -> Path:
    folder = cache_directory() / "peers" / name
    python, stamp = folder / "bin" / "python", folder / "packages"
    wanted = "\n".join(PEERS[name])
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"… making the environment of {name} (several GB)", file=sys.stderr)
        uv = find_uv()
        subprocess.run([uv, "venv", "--quiet", "--clear", "--python=3.11", folder], check=True)
        install = [uv, "pip", "install", "--quiet", f"--python={python}"]
        subprocess.run([*install, *PEERS[name]], check=True)
        stamp.write_text(wanted)
    return python
