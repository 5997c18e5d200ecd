"""GuideLLM, a benchmark of other people's, runs unchanged against an engine and a router."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.environments import Packages, python_with
from tests.runtime.launch.processes import Process, running

pytestmark = [
    pytest.mark.process,
    pytest.mark.full,  # it imports torch and transformers for half a minute
    pytest.mark.xdist_group("engine"),
    pytest.mark.timeout(600),
]

TOKENIZER = Path("e2e/model/sluice-tiny").resolve()
REQUESTS, OUTPUT_TOKENS = 6, 8
SECONDS = 300.0
"""For a machine that is busy; a quarter of a minute else, of which the load is a tenth."""


def guidellm(url: str, path: str, folder: Path) -> dict[str, Any]:
    """What it reports of a few requests."""
    torch = importlib.metadata.version("torch").partition("+")[0]  # which uv has in its cache
    packages = Packages(("guidellm==0.8.1",), (f"torch=={torch}",))
    report = folder / "report.json"
    command = [
        str(python_with("guidellm", packages).with_name("guidellm")),
        "run",
        f"--backend=kind=openai_http,target={url},model=tiny,request_format={path}",
        "--profile=kind=concurrent,streams=2",
        f"--constraint=kind=max_requests,count={REQUESTS}",
        f"--tokenizer=kind=hf_auto,model={TOKENIZER}",
        f"--data=kind=synthetic_text,prompt_tokens=32,output_tokens={OUTPUT_TOKENS}",
        f"--output=kind=json,path={report}",
        "--disable-progress",
    ]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=folder,
        env={**variables, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    requests: dict[str, Any] = benchmark["requests"]
    return requests


def refuse_failures(requests: dict[str, Any]) -> None:
    assert not requests["errored"], requests["errored"][0]["info"]["error"]
    assert len(requests["successful"]) == REQUESTS
    for request in requests["successful"]:
        assert request["output_metrics"]["total_tokens"] == OUTPUT_TOKENS
        assert "continuous_usage_stats" in request["request_args"], "what it was refused for"


def test_guidellm_measures_an_engine(engine: tuple[Process, str], tmp_path: Path) -> None:
    refuse_failures(guidellm(engine[1], "/v1/completions", tmp_path))


def test_guidellm_measures_a_router(engine: tuple[Process, str], tmp_path: Path) -> None:
    config = tmp_path / "router.json"
    server = {"host": "127.0.0.1", "port": 0, "metricsPort": 0, "lameDuckSeconds": 0}
    config.write_text(json.dumps({"engines": [engine[1]], "server": server}))
    with running([sys.executable, "-m", "sluice_router", "--config", str(config)]) as router:
        host, port = router.wait_for(r"listening on (\S+) port (\d+)").groups()
        refuse_failures(guidellm(f"http://{host}:{port}", "/v1/chat/completions", tmp_path))
