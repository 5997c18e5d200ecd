"""The images of a preview, and how the command ends where nobody reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from sluice_operator.cli.image_options import DEFAULT_IMAGES
from sluice_operator.cli.main import main

from tests.operator.api.documents import document

ALLOWED = "is not allowed; allowed: 1 to 512 characters, none of them blank"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "service.yaml"
    path.write_text(yaml.safe_dump_all([document({}, name) for name in ("a", "b")]))
    return str(path)


@pytest.mark.parametrize("command", ["plan", "render"])
@pytest.mark.parametrize("name", ["engine", "gpu-engine", "router", "fetch"])
@pytest.mark.parametrize("value", ["a b", "\t", "x" * 513])
def test_what_is_no_image_is_refused_by_flag_or_variable(
    command: str,
    name: str,
    value: str,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([command, "-f", file, f"--{name}-image", value]) == 2
    variable = f"SLUICE_{name.upper().replace('-', '_')}_IMAGE"
    monkeypatch.setenv(variable, value)
    assert main([command, "-f", file]) == 2
    flagged, told = capsys.readouterr().err.splitlines()
    assert flagged.startswith(f"sluice: --{name}-image: ")
    assert told.startswith(f"sluice: {variable}: ")
    assert flagged.endswith(ALLOWED)
    assert told.endswith(ALLOWED)


@pytest.mark.parametrize("name", ["engine", "router"])
def test_an_empty_flag_is_refused(name: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-f", file, f"--{name}-image", ""]) == 2
    assert capsys.readouterr().err == f'sluice: --{name}-image: "" {ALLOWED}\n'


@pytest.mark.parametrize(
    ("variable", "flags", "image"),
    [
        ("", [], DEFAULT_IMAGES.engine),
        ("e:1", [], "e:1"),
        ("e:1", ["--engine-image", "e:2"], "e:2"),
        ("a b", ["--engine-image", "e:2"], "e:2"),
    ],
)
def test_a_flag_comes_before_the_variable_and_an_empty_variable_is_none(
    variable: str,
    flags: list[str],
    image: str,
    file: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SLUICE_ENGINE_IMAGE", variable)
    assert main(["plan", "-f", file, "-o", "json", *flags]) == 0
    found, _ = json.loads(capsys.readouterr().out)
    assert found["pools"]["mixed"]["image"]["name"] == image


@pytest.mark.process
@pytest.mark.parametrize("words", [["plan", "-f"], ["render", "-f"], ["translate", "--from"]])
def test_nobody_who_reads_is_no_traceback(words: list[str], file: str) -> None:
    rest = ["vllm", "--", "--model", "Qwen/Qwen3-8B"] if words[0] == "translate" else [file]
    command = [sys.executable, "-m", "sluice_operator.cli.main", *words, *rest]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
