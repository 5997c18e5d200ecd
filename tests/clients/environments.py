"""Environments of clients, which do not go together with each other or with ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice_runtime.engine.sizing.host import LIBRARY_VARIABLES

from benchmarks.peers.environments import Packages, python_with
from tests.clients.cases import MODEL
from tests.runtime.launch.processes import program, running, write_config

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
FOLDER: Final = Path("e2e/model/sluice-tiny").resolve()
TOOL_SECONDS: Final = 900.0
"""For all of one run; on a machine that is not busy, a tenth."""


class NotHereError(Exception):
    """What a tool needs, and this machine has not."""


@dataclass(frozen=True)
class Place:
    """What a tool is given: base URLs without `/v1`, and a folder of its own."""

    url: str
    engine: str
    router_metrics: str
    folder: Path

    def run(
        self,
        command: Sequence[Any],
        variables: Mapping[str, str] | None = None,
        *,
        stdin: str | None = None,
        any_status: bool = False,
    ) -> str:
        """What a program prints; RuntimeError with its last words if it fails. Nothing that it
        started outlives it, nor an interrupt."""
        ours = {"PYTHONPATH", *LIBRARY_VARIABLES}
        environment = {key: value for key, value in os.environ.items() if key not in ours}
        own = {**VARIABLES, "TMPDIR": str(self.folder), **(variables or {})}
        with subprocess.Popen(
            [str(part) for part in command],
            env={**environment, **own},
            stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                printed, errors = process.communicate(stdin, timeout=TOOL_SECONDS)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        if process.returncode and not any_status:
            raise RuntimeError((printed + errors)[-3000:])
        return printed


@contextmanager
def serving(folder: Path, aliases: Sequence[str] = ()) -> Iterator[Place]:
    """A router before one engine with the small model."""
    served = {"uri": f"file://{FOLDER}", "name": MODEL, "aliases": list(aliases)}
    engine = write_config(folder, model=served, toolCallFormat="hermes", kvPoolTokens=32768)
    config = folder / "router.json"
    with running(program(engine)) as process:
        url = process.ready_url()
        server = {"host": "127.0.0.1", "port": 0, "metricsPort": 0, "lameDuckSeconds": 0}
        config.write_text(json.dumps({"engines": [url], "server": server}))
        with running([sys.executable, "-m", "sluice_router", "--config", str(config)]) as router:
            listening = r"listening on (\S+) port (\d+), metrics on port (\d+)"
            host, port, metrics = router.wait_for(listening).groups()
            yield Place(f"http://{host}:{port}", url, f"http://{host}:{metrics}", folder)


def package_index() -> str:
    return os.environ.get("UV_DEFAULT_INDEX", "https://pypi.org/simple").rstrip("/")


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
