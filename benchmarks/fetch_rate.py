"""How fast the fetcher downloads and verifies a model, from a hub on loopback to a disk.

Prints one JSON line a case: a new process that finds nothing, and one that finds all of it. The hub
is a thread of this process, so both share the machine's processors.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.fetch.hub_server import COMMIT, Hub, serving

SHARDS: Final = 4
ROOT: Final = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--folder", help="on the disk to be measured")
    options = parser.parse_args()
    hub = Hub(_files(options.megabytes * 10**6))
    with serving(hub), tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for case in ("nothing there", "all there"):
            seconds = _fetch(hub.url, folder)
            line = {"bench": "fetch-rate", "case": case, "seconds": round(seconds, 2)}
            print(json.dumps(line | {"megabytes": options.megabytes}), flush=True)


def _files(size_bytes: int) -> dict[str, bytes]:
    """A repository; its shards differ, since equal ones would be one blob."""
    shard = random.Random(7).randbytes(size_bytes // SHARDS)
    names = [f"model-{number:05d}-of-{SHARDS:05d}.safetensors" for number in range(1, SHARDS + 1)]
    shards = {name: shard[n:] + shard[:n] for n, name in enumerate(names)}
    others = ("config.json", "tokenizer.json", "model.safetensors.index.json")
    return shards | dict.fromkeys(others, b"{}")


def _fetch(url: str, folder: str) -> float:
    command = [sys.executable, "-m", "sluice_fetch", "--uri", "hf://org/name", "--endpoint", url]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "runtime")}
    started = time.monotonic()
    subprocess.run(
        [*command, "--revision", COMMIT, "--cache", folder],
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return time.monotonic() - started


if __name__ == "__main__":
    main()
