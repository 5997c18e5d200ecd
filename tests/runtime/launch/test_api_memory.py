"""The API process stays as large as it is, whatever words clients send."""

from __future__ import annotations

import json
import os
import random
import string
import sys
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.runtime.launch.processes import running, write_config

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).parent / "with_fake_engine.py"
MODEL = ROOT / "e2e" / "model" / "sluice-tiny"
CLIENTS = 8
WORDS = 20
WARM_UP_REQUESTS = 3_200
MOST_GROWTH_BYTES = 2_000_000


@pytest.mark.timeout(600)
@pytest.mark.parametrize("requests", [4_000, pytest.param(25_000, marks=pytest.mark.full)])
def test_random_words_do_not_make_it_grow(tmp_path: Path, requests: int) -> None:
    config = write_config(tmp_path, model={"uri": str(MODEL), "name": "tiny"})
    command = [sys.executable, str(PROGRAM), str(config), "--step-seconds", "0.001"]
    with running(command, PYTHONPATH=str(ROOT)) as process:
        url = process.ready_url()
        pid = process.child("sluice_runtime.server")
        started = resident_bytes(pid)
        ask(url, WARM_UP_REQUESTS, seed=0)
        warm = resident_bytes(pid)
        ask(url, requests, seed=CLIENTS)
        ended = resident_bytes(pid)
    print(f"started {started:,}, after {WARM_UP_REQUESTS} {warm:,}, {requests} later {ended:,}")
    assert ended - warm < MOST_GROWTH_BYTES


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def ask(url: str, requests: int, seed: int) -> None:
    """Completions of random words, by several clients at once."""
    share = requests // CLIENTS
    with ThreadPoolExecutor(CLIENTS) as clients:
        for done in [clients.submit(_client, url, share, seed + i) for i in range(CLIENTS)]:
            done.result()


def _client(url: str, requests: int, seed: int) -> None:
    source = random.Random(seed)
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    for _ in range(requests):
        words = (
            "".join(source.choices(string.ascii_lowercase, k=source.randint(3, 16)))
            for _ in range(WORDS)
        )
        body = {"model": "tiny", "prompt": " ".join(words), "max_tokens": 1}
        connection.request("POST", "/v1/completions", json.dumps(body))
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text
    connection.close()
