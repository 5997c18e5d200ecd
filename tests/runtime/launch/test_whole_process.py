"""`python -m sluice_runtime --config engine.json` with the real engine and a tiny random model."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import tokenizers
from sluice_contract.load import LoadReport
from sluice_contract.termination import TerminationMessage
from sluice_runtime.model_files import DUMMIES

from tests.runtime.launch.processes import (
    HANG_SECONDS,
    SOON_SECONDS,
    Process,
    alive,
    descendants,
    get,
    running,
    status,
    until,
    write_config,
)

pytestmark = pytest.mark.process

CONTEXT_TOKENS = 4096
SETTINGS: dict[str, Any] = {
    "contextLength": CONTEXT_TOKENS,
    "kvPoolTokens": 8 * CONTEXT_TOKENS,
    "threads": 1,
    "server": {"drainSeconds": 120},
}


def command(config: Path) -> list[str]:
    return [sys.executable, "-m", "sluice_runtime", "--config", str(config)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, str]]:
    """One process for the tests that leave it running."""
    with running(command(write_config(tmp_path_factory.mktemp("engine"), **SETTINGS))) as process:
        yield process, process.ready_url()


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Process]:
    """A process that the test may end."""
    log = tmp_path / "termination-log"
    log.touch()
    config = write_config(tmp_path, **SETTINGS)
    with running(command(config), SLUICE_TERMINATION_LOG=str(log)) as process:
        yield process


def load(url: str) -> LoadReport:
    return LoadReport.model_validate(get(url, "/load").json())


def generated_tokens(url: str) -> float:
    found = re.search(r"^sluice_generated_tokens_total (\S+)$", get(url, "/metrics").text, re.M)
    assert found
    return float(found[1])


def runs(report: LoadReport, requests: int) -> bool:
    """Whether so many requests run and hold pages, or none of either; by one report."""
    holds = report.kv_pages_free + report.kv_pages_evictable < report.kv_pages_total
    return report.running_requests == requests and holds == (requests > 0)


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def test_the_openai_client_streams(engine: tuple[Process, str]) -> None:
    with client(engine[1]) as sdk:
        whole = sdk.completions.create(model="tiny", prompt="hello", max_tokens=32, temperature=0)
        stream = sdk.completions.create(
            model="tiny", prompt="hello", max_tokens=32, temperature=0, stream=True
        )
        assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
        chat = sdk.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4, n=2, seed=1
        )
        again = sdk.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4, n=2, seed=1
        )
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == 5
    texts = [choice.message.content for choice in chat.choices]
    assert texts == [choice.message.content for choice in again.choices]


def test_a_client_that_goes_frees_its_pages(engine: tuple[Process, str]) -> None:
    url = engine[1]
    body = {"model": "tiny", "prompt": "x" * 200, "stream": True, "n": 4}
    body |= {"max_tokens": CONTEXT_TOKENS - 200, "ignore_eos": True}
    before = generated_tokens(url)
    with (
        httpx.Client(verify=False, timeout=HANG_SECONDS) as http,
        http.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        lines = response.iter_lines()  # kept: the connection closes with it
        next(lines)
        until(lambda: runs(load(url), 4))
    until(lambda: runs(load(url), 0))
    assert generated_tokens(url) - before < 4 * body["max_tokens"], "it was over, not aborted"


def test_prompts_that_can_never_fit_are_refused_with_the_numbers(
    engine: tuple[Process, str],
) -> None:
    response = httpx.post(
        f"{engine[1]}/v1/completions",
        json={"model": "tiny", "prompt": "x" * CONTEXT_TOKENS},
        verify=False,
        timeout=HANG_SECONDS,
    )
    assert response.status_code == 400
    assert str(CONTEXT_TOKENS) in response.json()["error"]["message"]


def test_the_api_process_is_small(engine: tuple[Process, str]) -> None:
    status = Path(f"/proc/{engine[0].child('sluice_runtime.server')}/status").read_text()
    resident_kib = int(status.partition("VmRSS:")[2].split()[0])
    assert resident_kib < 110 * 1024


def test_sigterm_mid_stream_drains(own_engine: Process) -> None:
    url = own_engine.ready_url()
    children = descendants(own_engine.popen.pid)
    body = {"model": "tiny", "prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 200}
    with (
        httpx.Client(verify=False, timeout=HANG_SECONDS) as http,
        http.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        own_engine.popen.terminate()
        until(lambda: status(url, "/ready") == 503)
        assert load(url).draining
        rest = list(lines)
    finished = time.monotonic()
    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]
    assert own_engine.popen.wait(HANG_SECONDS) == 0
    assert time.monotonic() - finished < SOON_SECONDS
    assert not any(map(alive, children))


def test_sigterm_while_loading_ends_soon(own_engine: Process) -> None:
    own_engine.url()  # the engine still imports torch
    code, seconds = own_engine.end()
    assert code == 0
    assert seconds < SOON_SECONDS


def test_a_killed_engine_ends_streams_with_an_error(own_engine: Process, tmp_path: Path) -> None:
    url = own_engine.ready_url()
    body = {"model": "tiny", "prompt": "x", "stream": True, "ignore_eos": True}
    with (
        httpx.Client(verify=False, timeout=HANG_SECONDS) as http,
        http.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        os.kill(own_engine.child("sluice_runtime.engine"), signal.SIGKILL)
        rest = list(lines)
    assert '"error"' in rest[-1]
    assert own_engine.popen.wait(HANG_SECONDS) == 1
    left = TerminationMessage.model_validate_json((tmp_path / "termination-log").read_text())
    assert left.reason == "EngineDied"


@pytest.mark.parametrize("damage", ["no weights", "no tokenizer"])
def test_a_damaged_model_folder_is_named_and_ends_the_process(damage: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(DUMMIES["qwen3-tiny"])))
    if damage == "no weights":
        tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, [])).save(
            str(folder / "tokenizer.json")
        )
    log = tmp_path / "termination-log"
    log.touch()
    config = tmp_path / "engine.json"
    config.write_text(json.dumps({"model": {"uri": str(folder)}, "server": {"port": 0}}))
    with running(command(config), SLUICE_TERMINATION_LOG=str(log)) as process:
        assert process.popen.wait(HANG_SECONDS) == 2
        error = [line for line in process.rest().splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    assert str(folder) in error[0]
    left = TerminationMessage.model_validate_json(log.read_text())
    assert left.reason == "ModelLoadFailed"
