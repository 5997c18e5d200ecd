"""Environments of clients, which do not go together with each other or with ours."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from sluice_runtime.engine.sizing.host import LIBRARY_VARIABLES

from benchmarks.peers.environments import Packages, python_with

ENVIRONMENTS: Final = {
    "clients-openai-3": Packages(
        ("openai==3.3.0", "langchain-openai==1.7.3", "langchain-core==1.7.2", "instructor==1.17.0")
    ),
    # LiteLLM imports mcp for tools and responses, and does not ask for it.
    "clients-openai-2": Packages(
        (
            "openai==2.54.0", "litellm==1.106.2", "mcp==2.3.0",
            "llama-index-llms-openai-like==0.8.1", "llama-index-core==0.14.25",
        )
    ),
}  # fmt: skip
CLIENTS: Final = {
    "langchain": "clients-openai-3",
    "instructor": "clients-openai-3",
    "litellm": "clients-openai-2",
    "llamaindex": "clients-openai-2",
}
"""Its cases are in `with_NAME.py`."""
SECONDS: Final = 100.0
"""For a machine that is busy; half a dozen else."""
VARIABLES: Final = {
    "HTTP_PROXY": "http://127.0.0.1:1",
    "HTTPS_PROXY": "http://127.0.0.1:1",
    "NO_PROXY": "127.0.0.1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
"""Whoever asks another host is refused."""


def made() -> dict[str, Path]:
    """The Python of each client; environments are made on first use."""
    pythons = {name: python_with(name, packages) for name, packages in ENVIRONMENTS.items()}
    return {client: pythons[name] for client, name in CLIENTS.items()}


def failures_of(name: str, python: Path, url: str) -> str:
    """What a client's program says of cases that failed; it asks `url`, and nobody else."""
    ours = {"PYTHONPATH", *LIBRARY_VARIABLES}
    variables = {key: value for key, value in os.environ.items() if key not in ours}
    done = subprocess.run(
        [python, "-m", f"tests.clients.with_{name}", url],
        env={**variables, **VARIABLES},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return f"exit code {done.returncode}\n{done.stderr}" if done.returncode else ""
