"""The engine process over a real socket: ready, tokens, an abort, SIGTERM; and a failed start."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sluice_contract.wire.start import ENGINE_PHASES
from sluice_runtime.engine import __main__ as engine_main
from sluice_runtime.errors import EngineUnfitError, OutOfMemoryError
from sluice_runtime.wire.endpoint import private_endpoint
from sluice_runtime.wire.messages import (
    Abort,
    EngineFailed,
    EngineReady,
    Generate,
    Sampling,
    StepResult,
    ToApi,
)
from sluice_runtime.wire.transport import ApiLink, EngineLink

pytestmark = pytest.mark.process

DUMMY = {"uri": "dummy://qwen3-tiny"}


@contextmanager
def engine(
    folder: Path, *, waits: bool = False, **config: Any
) -> Iterator[tuple[ApiLink, subprocess.Popen[bytes]]]:
    path = folder / "engine.json"
    path.write_text(json.dumps(config))
    with private_endpoint() as endpoint:
        link = ApiLink(endpoint)
        options = ["--config", str(path), "--endpoint", endpoint]
        process = subprocess.Popen(
            [sys.executable, "-m", "sluice_runtime.engine", *(["--wait"] if waits else options)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert process.stdin is not None
            with process.stdin as commands:
                commands.write(json.dumps(options).encode() if waits else b"")
            yield link, process
        finally:
            process.kill()
            process.wait()
            link.close()


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


async def steps(messages: AsyncIterator[ToApi]) -> AsyncIterator[StepResult]:
    async for message in messages:
        if isinstance(message, StepResult):
            yield message


@pytest.mark.parametrize("waits", [False, True])
async def test_it_serves_until_sigterm(waits: bool, tmp_path: Path) -> None:
    began = time.monotonic()
    settings = {"model": DUMMY, "threads": 1, "kvPoolTokens": 2048}
    with engine(tmp_path, waits=waits, **settings) as (link, process):
        messages = link.messages()
        ready = await anext(messages)
        assert isinstance(ready, EngineReady)
        assert (ready.kv_pool_tokens, ready.vocabulary_size) == (2048, 259)
        assert tuple(ready.start) == tuple(ENGINE_PHASES)
        assert ready.start["imports"] > ready.start["ranks"]
        assert sum(ready.start.values()) < time.monotonic() - began + 0.02
        mapped = mapped_files(process.pid)
        assert "torch" in mapped
        assert "mooncake" not in mapped  # no library of extra handover-cpu in mode Mixed
        link.send(Generate("short", [1, 2, 3], 5, Sampling(temperature=0.0)))
        link.send(Generate("long", [1, 2, 3], 2000, Sampling(temperature=0.0)))
        answer: list[int] = []
        async for step in steps(messages):
            for delta in step.deltas:
                answer += delta.token_ids if delta.request_id == "short" else []
                if delta.request_id == "short" and delta.finish_reason:
                    assert delta.finish_reason == "length"
                    link.send(Abort("long"))
            if any(delta.finish_reason == "abort" for delta in step.deltas):
                available = step.load.figures.kv_pages_available
                assert available == step.load.figures.kv_pages_total
                break
        assert len(answer) == 5
        process.terminate()
        assert await asyncio.to_thread(process.wait) == 0


async def test_a_failed_start_says_why(tmp_path: Path) -> None:
    with engine(tmp_path, model={"uri": "dummy://nothing"}) as (link, process):
        failed = await anext(link.messages())
        assert isinstance(failed, EngineFailed)
        assert failed.reason == "ModelLoadFailed"
        assert "dummy://qwen3-tiny" in failed.message
        assert await asyncio.to_thread(process.wait) == 2


def test_the_end_of_its_input_ends_an_engine_that_waits_for_its_options() -> None:
    """As after a refused configuration, which the launcher reports."""
    command = [sys.executable, "-m", "sluice_runtime.engine", "--wait"]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_library_variables_are_set_before_torch_is_loaded() -> None:
    """libgomp reads its variables once, when torch loads it."""
    script = "import sys, sluice_runtime.engine.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.parametrize(
    ("config", "reason", "part"),
    [
        ({"model": {"uri": "x"}, "chunkSize": 0}, "InvalidConfig", "chunkSize"),
        ({"model": DUMMY | {"revision": "v1"}}, "InvalidConfig", "model.revision"),
    ],
)
def test_an_invalid_configuration_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], reason: str, part: str
) -> None:
    code, failed = end_of(tmp_path, monkeypatch, config)
    assert (code, failed.reason) == (2, reason)
    assert part in failed.message
    assert "\n" not in failed.message


@pytest.mark.parametrize(
    ("failure", "reason", "code"),
    [
        (OutOfMemoryError("the pool"), "OutOfMemory", 2),
        (ValueError("a bug"), "EngineCrashed", 1),
        (EngineUnfitError("7 of 64 pages"), "PagesQuarantined", 1),
    ],
)
def test_the_exit_code_depends_on_the_error(
    failure: Exception, reason: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise failure

    monkeypatch.setattr(engine_main, "_serve", fails)
    ended, failed = end_of(tmp_path, monkeypatch, {"model": DUMMY})
    assert (ended, failed.reason) == (code, reason)
    assert str(failure) in failed.message


def end_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> tuple[int, EngineFailed]:
    """Exit code and last message of an engine that runs in this process."""
    sent: list[ToApi] = []
    path = folder / "engine.json"
    path.write_text(json.dumps(config))
    monkeypatch.setattr(EngineLink, "send", lambda _, message: sent.append(message))
    code = engine_main.main(["--config", str(path), "--endpoint", f"ipc://{folder}/engine.sock"])
    (failed,) = sent
    assert isinstance(failed, EngineFailed)
    return code, failed
