"""Start of one engine: process start to `/health`, to `/ready`, and to the first token, and the
phases that the engine measures.

Prints one JSON line a figure: the median of `--runs` runs with a warm page cache. `import torch`
and a plain read of the model's files are measured in turns with the starts. An engine does both, so
the milestones have their ratios to the sum. On a busy machine only the ratio of processor time
counts: of the engine process until `/ready`, to that of `import torch`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from benchmarks.cpu_serving import write_model
from benchmarks.load_weights import read

POLL_SECONDS = 0.01


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", help="URI; without it the 34 M model of the serving bench")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            write_model(Path(folder))
            write_tokenizer(Path(folder))
        runs = [measure(arguments.model or folder) for _ in range(arguments.runs)]
    for name in runs[0]:
        line = {
            "bench": "startup",
            "model": arguments.model or "qwen3-34m",
            "figure": f"{name}_seconds",
            "value": round(statistics.median(run[name] for run in runs), 3),
        }
        if name in ("health", "ready", "first_token", "engine_cpu"):
            torch = "import_torch_cpu" if name == "engine_cpu" else "import_torch"
            least = [run[torch] + run["read"] for run in runs]
            ratios = [run[name] / floor for run, floor in zip(runs, least, strict=True)]
            line["ratio_to_import_torch_and_read"] = round(statistics.median(ratios), 2)
        print(json.dumps(line))


def measure(model: str) -> dict[str, float]:
    """Seconds of one start: to each milestone, of each phase, and what they are compared with."""
    before = children_cpu_seconds()
    floor = {"import_torch": import_torch_seconds(), "read": read_seconds(model)}
    floor["import_torch_cpu"] = children_cpu_seconds() - before
    started = time.monotonic()
    with started_engine({"model": {"uri": model}}) as (url, process):
        health = wait_for(f"{url}/health", process) - started
        ready = wait_for(f"{url}/ready", process) - started
        engine_cpu = engine_cpu_seconds(process.pid)
        first_token(url)
        token = time.monotonic() - started
        phases = start_phases(url)
    milestones = {"health": health, "ready": ready, "first_token": token, "engine_cpu": engine_cpu}
    return milestones | floor | {f"phase_{name}": seconds for name, seconds in phases.items()}


@contextmanager
def started_engine(
    config: dict[str, Any], output: int | None = subprocess.DEVNULL
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address at which an engine will listen, and its process, which ends with the context.
    `output`: where its output goes; None: to this process's."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "engine.json")
        path.write_text(
            json.dumps({**config, "server": {**config.get("server", {}), "port": port}})
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "sluice_runtime", "--config", str(path)],
            stdout=output,
            stderr=output,
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


def start_phases(url: str) -> dict[str, float]:
    """Seconds of each phase of an engine's start, as it measured them."""
    with urllib.request.urlopen(f"{url}/load", timeout=5) as answer:
        phases: dict[str, float] = json.load(answer)["start"]
    return phases


def import_torch_seconds() -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True, env=dict(os.environ))
    return time.monotonic() - started


def children_cpu_seconds() -> float:
    """Processor time of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def engine_cpu_seconds(launcher_pid: int) -> float:
    """Processor time of the engine process that a launcher started."""
    children = Path(f"/proc/{launcher_pid}/task/{launcher_pid}/children").read_text().split()
    for child in children:
        if b"sluice_runtime.engine" in Path(f"/proc/{child}/cmdline").read_bytes():
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    raise SystemExit(f"process {launcher_pid} has no engine process")


def write_tokenizer(folder: Path, tokens: int = 0) -> None:
    """Writes a tokenizer with a token for each byte, and others up to so many `tokens`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = [*alphabet, *(f"x{number}" for number in range(len(alphabet), tokens))]
    tokenizer = Tokenizer(models.BPE({text: i for i, text in enumerate(texts)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def read_seconds(model: str) -> float:
    """Time of a plain read of the model's weights; 0 where it has no files."""
    started = time.monotonic()
    for path in sorted(Path(model).glob("*.safetensors")):
        read(path)
    return time.monotonic() - started


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


if __name__ == "__main__":
    main()
