"""What the launcher refuses before anything starts, and what it sets for the libraries."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sluice_contract.cluster.termination import TerminationMessage
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.engine import EngineConfig
from sluice_runtime.errors import StartupError
from sluice_runtime.process import checks, launch
from sluice_runtime.process.threads import configured_threads

from tests.runtime.launch.processes import alive, command_line, descendants

DUMMY = {"uri": "dummy://qwen3-tiny"}
NO_CACHE = {"schedulingPolicy": "lpm", "prefixCache": False}


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher starts none while it checks the file."""
    monkeypatch.setattr(launch, "_waiting_engine", lambda _: nullcontext())


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize(
    ("config", "reason", "says"),
    [
        ({}, "InvalidConfig", "model"),
        ({"model": DUMMY, "chunkSzie": 1}, "InvalidConfig", "chunkSize"),
        ({"model": DUMMY, "chunkSize": 0}, "InvalidConfig", "chunkSize"),
        ({"model": DUMMY, "chunkSize": 8}, "InvalidConfig", "at least pageSize (16)"),
        ({"model": DUMMY, "server": {"port": 70000}}, "InvalidConfig", "server.port: 70000 is"),
        (
            {"model": DUMMY, "schedulingPolicy": "lpm", "prefixCache": False},
            "InvalidConfig",
            "a policy other than lpm",
        ),
        ({"model": DUMMY, "role": "prefill"}, "InvalidConfig", "handoverKeyFile: null"),
        (
            {"model": DUMMY, "role": "decode", "handoverKeyFile": "/nowhere/key"},
            "InvalidConfig",
            'handoverKeyFile: "/nowhere/key" is not allowed; allowed: a readable file with a key',
        ),
        ({"model": DUMMY, "cudaGraphMaxBatch": 8}, "InvalidConfig", "cudaGraphMaxBatch: 8"),
        (
            {"model": DUMMY, "chunkSize": 8, "cudaGraphMaxBatch": 8},
            "InvalidConfig",
            "allowed: 0 without an accelerator; chunkSize: 8 is not allowed",
        ),
        (
            {"model": DUMMY, "accelerator": {"product": "T4", "count": 2}, "cudaGraphMaxBatch": 8},
            "AcceleratorMissing",
            "accelerator: 2 x T4 is asked for, and ",
        ),
        ({"model": DUMMY | {"revision": "v1"}}, "InvalidConfig", 'model.revision: "v1"'),
        ({"model": {"uri": "/nowhere"}}, "ModelLoadFailed", "/nowhere"),
        ({"model": {"uri": "dummy://x"}}, "ModelLoadFailed", "dummy://qwen3-tiny"),
        ({"model": {"uri": "s3://x"}}, "ModelLoadFailed", "s3://x"),
    ],
)
def test_a_bad_file_is_one_line_and_a_termination_message(
    config: dict[str, Any],
    reason: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path, log = tmp_path / "engine.json", tmp_path / "termination-log"
    path.write_text(json.dumps(config))
    log.touch()
    monkeypatch.setenv("SLUICE_TERMINATION_LOG", str(log))
    assert launch.main(["--config", str(path)]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    assert says in line
    left = TerminationMessage.model_validate_json(log.read_text())
    assert left.reason == reason
    assert says in left.message


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("adapters", [{}, {"adaptersFile": "/adapters.json"}])
def test_what_is_not_read_without_adapters_is_warned_of(
    adapters: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(_: EngineConfig) -> Accelerator:
        raise StartupError("none")

    path = tmp_path / "engine.json"
    settings = {"model": DUMMY, "maxLorasPerBatch": 2, "maxLoraRank": 8}
    path.write_text(json.dumps(settings | adapters))
    assert launch.main(["--config", str(path)], find=none) == 2
    *warnings, error = capsys.readouterr().err.splitlines()
    assert error == "error: none"
    assert warnings == [
        f"warning: {setting} is not read without adapters"
        for setting in ("maxLorasPerBatch: 2", "maxLoraRank: 8")
        if not adapters
    ]


def test_fewer_threads_of_openmp_than_the_engine_uses_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps({"model": DUMMY, "threads": 3}))
    monkeypatch.setenv("SLUICE_TERMINATION_LOG", "")
    monkeypatch.setenv("OMP_THREAD_LIMIT", "2")
    assert launch.main(["--config", str(path)]) == 2
    assert capsys.readouterr().err == (
        'error: OMP_THREAD_LIMIT: "2" is not allowed; '
        "allowed: at least 3 (threads), or leaving it out\n"
    )
    for enough in ("3", "", "many"):  # what OpenMP does not understand, it leaves out
        monkeypatch.setenv("OMP_THREAD_LIMIT", enough)
        assert checks.checked_config(path).threads == 3


def test_the_engine_loads_its_libraries_while_the_configuration_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets its libraries' variables at its start, and is gone after a refusal."""
    engines: list[int] = []
    before = set(descendants(os.getpid()))

    def refused(_: EngineConfig) -> Accelerator:
        engines.extend(set(descendants(os.getpid())) - before)
        assert "-m sluice_runtime.engine --wait" in command_line(engines[0])
        assert b"\0OMP_NUM_THREADS=3\0" in Path(f"/proc/{engines[0]}/environ").read_bytes()
        raise StartupError("none")

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    path = tmp_path / "engine.json"
    path.write_text(json.dumps({"model": DUMMY, "threads": 3}))
    assert launch.main(["--config", str(path)], find=refused) == 2
    assert len(engines) == 1
    assert not alive(engines[0])


@pytest.mark.parametrize(
    ("content", "threads"),
    [
        ('{"threads": 2}', 2),
        ("{}", None),
        ('{"threads": "2"}', None),
        ("[2]", None),
        ("{", None),
        (None, None),
    ],
)
def test_threads_are_read_before_the_file_is_checked(
    content: str | None, threads: int | None, tmp_path: Path
) -> None:
    path = tmp_path / "engine.json"
    if content is not None:
        path.write_text(content)
    assert configured_threads(path) == threads


@pytest.mark.usefixtures("no_engine")
@pytest.mark.parametrize("content", [None, b"", b"{", b"\xff"])
def test_a_file_that_is_no_json_is_refused(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "engine.json"
    if content is not None:
        path.write_bytes(content)
    assert launch.main(["--config", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
