"""How the whole program ends: on a signal, with its engine, and on a model that is damaged."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from pathlib import Path

import httpx
import pytest
import tokenizers
from sluice_contract.cluster.termination import TerminationMessage
from sluice_contract.wire.load import LoadReport
from sluice_runtime.model.files import DUMMIES

from e2e.model.folder import FOLDER as TOY
from tests.runtime.launch.conftest import SETTINGS
from tests.runtime.launch.processes import (
    HANG_SECONDS,
    SOON_SECONDS,
    Process,
    alive,
    descendants,
    get,
    program,
    running,
    status,
    until,
    write_config,
)

pytestmark = pytest.mark.process


def test_sigterm_mid_stream_drains(own_engine: Process) -> None:
    url = own_engine.ready_url()
    children = descendants(own_engine.popen.pid)
    body = {"model": "tiny", "prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 600}
    with (
        httpx.Client(verify=False, timeout=HANG_SECONDS) as http,
        http.stream("POST", f"{url}/v1/completions", json=body) as response,
    ):
        lines = (line for line in response.iter_lines() if line)
        next(lines)
        own_engine.popen.terminate()
        until(lambda: status(url, "/ready") == 503)
        assert LoadReport.model_validate_json(get(url, "/load").content).draining
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


def test_the_toy_suggests_a_question_that_it_can_answer(tmp_path: Path) -> None:
    with running(program(write_config(tmp_path, model={"uri": str(TOY)}, **SETTINGS))) as engine:
        command = shlex.split(engine.wait_for(r"try: (curl .*), or .*/ in a browser")[1])
        body = json.loads(command[4]) | {"stream": False, "temperature": 0}
        answer = httpx.post(command[2], json=body, verify=False, timeout=HANG_SECONDS).json()
    (message,) = body["messages"]
    assert message["content"] == f"copy: {answer['choices'][0]['message']['content']}"


def test_a_killed_engine_ends_streams_with_an_error(own_engine: Process, tmp_path: Path) -> None:
    url = own_engine.ready_url()
    body = {"model": "tiny", "prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 3000}
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
    with running(program(config), SLUICE_TERMINATION_LOG=str(log)) as process:
        assert process.popen.wait(HANG_SECONDS) == 2
        error = [line for line in process.rest().splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    assert str(folder) in error[0]
    left = TerminationMessage.model_validate_json(log.read_text())
    assert left.reason == "ModelLoadFailed"
