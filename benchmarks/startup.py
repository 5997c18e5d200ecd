"""Cold start of one engine: process start to `/health`, to `/ready`, and to the first token.

Prints one JSON line a figure: the median of `--runs` runs with a warm page cache. For comparison,
the time that `import torch` alone takes on the same machine in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

POLL_SECONDS = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="dummy://qwen3-tiny")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    runs = [measure(arguments.model) for _ in range(arguments.runs)]
    torch_seconds = statistics.median(import_torch_seconds() for _ in range(arguments.runs))
    for name in ("health", "ready", "first_token"):
        figure = statistics.median(run[name] for run in runs)
        print(
            json.dumps(
                {
                    "bench": "startup",
                    "model": arguments.model,
                    "figure": f"{name}_seconds",
                    "value": round(figure, 3),
                    "import_torch_seconds": round(torch_seconds, 3),
                    "ratio_to_import_torch": round(figure / torch_seconds, 2),
                }
            )
        )


def measure(model: str) -> dict[str, float]:
    """Seconds from the start of the process to each milestone."""
    started = time.monotonic()
    with started_engine({"model": {"uri": model}}) as (url, process):
        health = wait_for(f"{url}/health", process) - started
        ready = wait_for(f"{url}/ready", process) - started
        first_token(url)
        return {"health": health, "ready": ready, "first_token": time.monotonic() - started}


@contextmanager
def started_engine(config: dict[str, Any]) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address at which an engine will listen, and its process, which ends with the context."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "engine.json")
        path.write_text(
            json.dumps({**config, "server": {**config.get("server", {}), "port": port}})
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "sluice_runtime", "--config", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> float:
    """`time.monotonic()` at the first 200 of `url`."""
    while process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return time.monotonic()
        except (urllib.error.URLError, ConnectionError):
            time.sleep(POLL_SECONDS)
    raise SystemExit(f"the engine exited with {process.returncode} before {url} answered")


def first_token(url: str) -> None:
    """Returns when the first chunk of a streamed completion is here."""
    body = {"prompt": "hello", "max_tokens": 4, "stream": True, "model": served_model(url)}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.readline()


def served_model(url: str) -> str:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
        return str(json.load(answer)["data"][0]["id"])


def import_torch_seconds() -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, env=dict(os.environ))
    return time.monotonic() - started


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
