"""One chat request runs code of few modules, and docs/architecture.md shows each of them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import httpx
import pytest

from tests.runtime.launch.processes import program, running, until, write_config

pytestmark = pytest.mark.process

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
RECORDER = """
import os, pathlib, sys, threading, time

folder = pathlib.Path(os.environ["SLUICE_TEST_RECORD"])
roles = {"sluice_router", "sluice_runtime.server", "sluice_runtime.engine"} & set(sys.orig_argv)
called = set()

def record(frame, event, _):
    if event == "call" and "sluice_" in frame.f_code.co_filename:
        called.add(frame.f_code.co_filename)

def follow(role):
    # A file that the test makes begins the recording, and its removal ends it.
    while not (folder / "begin").exists():
        time.sleep(0.02)
    called.clear()
    (folder / f"{role}.began").touch()
    while (folder / "begin").exists():
        time.sleep(0.02)
    (folder / "part").mkdir(exist_ok=True)
    written = folder / "part" / role
    written.write_text("\\n".join(called.copy()))
    written.rename(folder / f"{role}.called")

for role in roles:
    threading.Thread(target=follow, args=(role,), daemon=True).start()
    threading.setprofile(record)
    sys.setprofile(record)
"""
PROCESSES = {
    "sluice_router": "the router",
    "sluice_runtime.server": "the API process",
    "sluice_runtime.engine": "the engine process",
}
BESIDE = {
    "sluice_router/discovery",
    "sluice_router/monitoring",
    "sluice_runtime/server/health",
    "sluice_runtime/engine/__main__",
}
"""What runs now and then, request or not."""
MAX_MODULES = 80
"""So many a reader has to cross, from the socket to the first token."""


def ask(url: str) -> None:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 2,
        "stream": True,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.text.endswith("data: [DONE]\n\n"), answer.text


def recorded(folder: Path, url: str) -> dict[str, set[str]]:
    """Modules that ran for a request in each process, as `sluice_router/pick`."""
    begin = folder / "begin"
    begin.touch()
    until(lambda: len(list(folder.glob("*.began"))) == len(PROCESSES))
    ask(url)
    begin.unlink()
    until(lambda: len(list(folder.glob("*.called"))) == len(PROCESSES))
    return {
        process: {
            re.sub(r".*(sluice_\w+/.*)\.py", r"\1", path)
            for path in (folder / f"{process}.called").read_text().splitlines()
        }
        for process in PROCESSES
    }


def test_a_request_crosses_few_modules_and_the_page_shows_them(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(RECORDER)
    variables = {"PYTHONPATH": str(tmp_path), "SLUICE_TEST_RECORD": str(tmp_path)}
    with running(program(write_config(tmp_path, threads=1)), **variables) as engine:
        engine_url = engine.ready_url()
        server = {"host": "127.0.0.1", "port": 0, "metricsPort": 0, "lameDuckSeconds": 0}
        config = tmp_path / "router.json"
        config.write_text(json.dumps({"engines": [engine_url], "server": server}))
        command = [sys.executable, "-m", "sluice_router", "--config", str(config)]
        with running(command, **variables) as router:
            host, port = router.wait_for(r"listening on (\S+) port (\d+)").groups()
            url = f"http://{host}:{port}"
            ask(url)
            modules = recorded(tmp_path, url)
    every = sorted(set().union(*modules.values()) - BESIDE)
    print("\n".join(every))
    assert len(every) <= MAX_MODULES, "merge what is always read together"
    page = PAGE.read_text()
    assert f"runs code of {len(every)} modules" in page
    for process, heading in PROCESSES.items():
        section = page.partition(f"### The modules of {heading}")[2].partition("\n#")[0]
        words = set(re.findall(r"\w+", section))
        missing = {name for name in modules[process] - BESIDE if Path(name).name not in words}
        assert not missing, f"docs/architecture.md does not show them ({heading})"
