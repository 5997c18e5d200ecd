"""`scripts/serve`: the settings it is given are the engine's, and what cannot be one is refused."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

SCRIPT = Path(__file__).parents[3] / "scripts" / "serve"
FILE = {"model": {"uri": "dummy://qwen3-tiny"}, "server": {"port": 1}, "slo": {"percentile": 9}}


def refusal(
    model: str = "",
    port: str = "",
    config: str = "",
    settings: str = "",
    devices: Path = Path("/nowhere"),
) -> str:
    """What the script says of arguments of which one is at fault; `devices`: in place of /dev."""
    command = [str(SCRIPT), model, port, config, settings]
    environment = {**os.environ, "SLUICE_DEVICES": str(devices)}
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert ended.returncode != 0
    return ended.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"settings": "{"}, '--settings: "{" is not allowed; allowed: a JSON object'),
        ({"settings": "[]"}, '--settings: "[]" is not allowed; allowed: a JSON object'),
        (
            {"config": "/nope.json"},
            '--config: "/nope.json" is not allowed; allowed: a readable file',
        ),
        ({"port": "x"}, '--port: "x" is not allowed; allowed: a number from 0 to 65535'),
        (
            {"port": "99999"},
            "server.port: 99999 is not allowed; allowed: a whole number from 0 to 65535",
        ),
        ({"settings": '{"chunkSizes": 3}'}, "chunkSizes: unknown field; did you mean chunkSize?"),
        (
            {"settings": '{"chunksize": 10, "schedulingPolicy": "lmp"}'},
            "did you mean",
        ),
        (
            {"port": "1", "settings": '{"server": {"port": -1}}'},
            "server.port: ",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_by_key(arguments: dict[str, Any], says: str) -> None:
    assert says in refusal(**arguments)


def test_settings_win_over_the_file_key_by_key(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(FILE))
    slo = '{"slo": {"itlMilliseconds": 50}}'
    assert "slo.percentile: " in refusal(config=str(path), settings=slo)
    assert "model.uri" in refusal(
        config=str(path), settings='{"model": {"uri": ""}, "slo": {"itlMilliseconds": 50}}'
    )


def test_a_gpu_is_used_where_there_is_one_and_nobody_says_otherwise(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert "accelerator: 1 x GPU is asked for" in refusal(devices=tmp_path)
    said = '{"accelerator": {}, "chunkSizes": 3}'
    assert "chunkSizes: unknown field" in refusal(settings=said, devices=tmp_path)
    (tmp_path / "nvidia0").rename(tmp_path / "nvidiactl")
    assert "chunkSizes" in refusal(settings='{"chunkSizes": 3}', devices=tmp_path)


@pytest.mark.parametrize("option", ["--minimal", "--serve"])
def test_each_set_up_leaves_what_the_command_sluice_imports(option: str, tmp_path: Path) -> None:
    uv, python = tmp_path / "cache/uv/bin/uv", tmp_path / ".venv/bin/python"
    for program, text in ((uv, 'echo "$@"'), (python, "")):  # instead of minutes of each
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    script = tmp_path / "scripts" / "setup"
    script.parent.mkdir()
    script.write_bytes(SCRIPT.with_name("setup").read_bytes())
    environment = {**os.environ, "SLUICE_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(
        ["bash", script, option],
        capture_output=True, text=True, timeout=60, check=True, env=environment,
    )  # fmt: skip
    assert "--extra operator" in done.stdout


def until_ready(lines: Iterable[str]) -> Iterator[str]:
    """Lines until the engine is ready."""
    for line in lines:
        yield line
        if "ready: " in line:
            return


def test_who_ends_the_script_ends_the_engine() -> None:
    settings = '{"threads": 1, "kvPoolTokens": 64}'
    command = [str(SCRIPT), "dummy://qwen3-tiny", "0", "", settings]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as script:
        assert script.stderr is not None
        begun = list(until_ready(script.stderr))
        chooses = "random weights; a model: sluice serve MODEL, make serve MODEL=…"
        assert f"… serving dummy://qwen3-tiny as qwen3-tiny: {chooses}\n" in begun
        assert any(", available_mem=" in line for line in begun)
        script.terminate()
        ended = script.stderr.read()
        assert script.wait(timeout=30) == 0
    assert "draining: new requests are refused\n" in ended
