"""The options of `sluice serve`: the settings they make, and what is refused by name."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from sluice_runtime.process import launch, serve
from sluice_runtime.process.serve import engine_config, has_gpu, main
from sluice_runtime.process.start import process_began

from e2e.model import released


def config(*words: str, has_gpu: bool = False) -> dict[str, Any]:
    """The configuration that a command line makes."""
    return engine_config(serve._parser().parse_args(words), has_gpu=has_gpu)


def test_without_options_it_is_random_weights_on_port_8000() -> None:
    assert config() == {"model": {"uri": "dummy://qwen3-tiny"}, "server": {"port": 8000}}


@pytest.mark.parametrize(
    ("word", "model"),
    [
        ("hf://org/name", {"uri": "hf://org/name"}),
        ("hf://org/name@v1/x", {"uri": "hf://org/name", "revision": "v1/x"}),
        ("org/name", {"uri": "hf://org/name"}),
        ("org/na.me-2@main", {"uri": "hf://org/na.me-2", "revision": "main"}),
        ("file:///a@b", {"uri": "file:///a@b"}),
        ("dummy://llama-tiny", {"uri": "dummy://llama-tiny"}),
    ],
)
def test_a_model_is_a_uri_or_a_repository(word: str, model: dict[str, str]) -> None:
    assert config(word)["model"] == model


def test_a_folder_goes_before_a_repository_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config("org/name")["model"] == {"uri": "hf://org/name"}
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert config("org/name")["model"] == {"uri": "org/name"}


def test_the_model_that_make_serve_fetches_is_served_from_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    assert main(["smollm2"]) == 2
    assert "once `make serve MODEL=smollm2` has fetched it" in capsys.readouterr().err
    monkeypatch.setattr(released, "_make", Path.mkdir)
    folder = released.ensure_released_model()
    assert config("smollm2")["model"] == {"uri": str(folder), "name": "smollm2"}
    assert folder.name.split("-")[3] == released.WEIGHTS[:8]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "smollm2").mkdir()
    assert config("smollm2")["model"] == {"uri": "smollm2"}, "a folder goes before it"


def test_each_option_wins_over_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    file.write_text('{"model": {"uri": "/a", "name": "n"}, "server": {"port": 1}, "slo": {"x": 1}}')
    words = ["--config", str(file)]
    assert config(*words) == json.loads(file.read_text())
    words += ["hf://org/name", "--port", "2"]
    assert config(*words)["model"] == {"uri": "hf://org/name", "name": "n"}
    assert config(*words)["server"] == {"port": 2}
    words += ["--settings", '{"server": {"port": 7}, "slo": {"y": 2}}']
    words += ["--settings", '{"server": {"port": 3}}']
    assert config(*words)["server"] == {"port": 3}
    words += ["--set", "server.port=4", "--set", "schedulingPolicy=lpm", "--set", "slo.x=true"]
    settings = config(*words)
    assert settings["server"] == {"port": 4}
    assert settings["schedulingPolicy"] == "lpm"
    assert settings["slo"] == {"x": True, "y": 2}


def test_a_gpu_is_used_where_there_is_one_and_nothing_else_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "accelerator" not in config()
    assert config(has_gpu=True)["accelerator"] == {"count": 1}
    assert config("--settings", '{"accelerator": {}}', has_gpu=True)["accelerator"] == {}
    monkeypatch.setenv("SLUICE_DEVICES", str(tmp_path))
    (tmp_path / "nvidiactl").touch()
    assert not has_gpu()
    (tmp_path / "nvidia0").touch()
    assert has_gpu()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--settings", "{"], '--settings: "{" is not allowed; allowed: a JSON object'),
        (["--settings", "[]"], '--settings: "[]" is not allowed; allowed: a JSON object'),
        (["--config", "/no"], '--config: "/no" is not allowed; allowed: a readable file'),
        (["--port", "x"], '--port: "x" is not allowed; allowed: a number from 0 to 65535'),
        (["--set", "a"], '--set: "a" is not allowed; allowed: KEY=VALUE, as in server.port=8001'),
        (["--set", "a..b=1"], '--set: "a..b=1" is not allowed; allowed: KEY=VALUE'),
        (["hf://../etc"], 'MODEL: "hf://../etc" is not allowed; allowed: a folder, hf://org/'),
        (["hf://org/name@"], 'MODEL: "hf://org/name@" is not allowed; allowed: a folder'),
        (["hf://org/name@a..b"], 'MODEL: "hf://org/name@a..b" is not allowed; allowed: a folder'),
        (["org/name@-v"], 'MODEL: "org/name@-v" is not allowed; allowed: a folder'),
        (["--set", "model.uri=hf://a"], 'model.uri: "hf://a" is not allowed; allowed: hf://org/'),
        (
            ["org/name", "--set", "model.revision=a b"],
            'model.revision: "a b" is not allowed; allowed: a branch, tag or commit',
        ),
        (["org/name", "--set", "model.revision=7"], "model.revision: 7 is not allowed; allowed"),
        (
            ["smollm9"],
            'MODEL: "smollm9" is not allowed; allowed: a folder, hf://org/name[@revision], '
            "org/name[@revision], dummy://name, or smollm2 once `make serve MODEL=smollm2` has",
        ),
    ],
)
def test_an_option_that_is_no_setting_is_named(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"sluice serve: {says}")


@pytest.mark.parametrize(
    ("module", "model", "extras"),
    [("torch", "dummy://x", "engine"), ("huggingface_hub", "org/name", "engine,fetch")],
)
def test_what_is_not_installed_is_said_with_the_command_that_installs_it(
    module: str,
    model: str,
    extras: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(serve, "find_spec", lambda name: None if name == module else name)
    assert main([model]) == 2
    had = f"in a checkout, scripts/setup --serve or: pip install '.[operator,{extras}]'"
    assert capsys.readouterr().err == f"sluice serve: {module} is not installed; {had}\n"


@pytest.mark.parametrize("model", ["dummy://qwen3-tiny", "org/name"])
def test_a_start_begins_with_the_process_or_after_the_download(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []

    def download(*_: object) -> dict[str, str]:
        times.append(time.monotonic())
        return {"uri": "/model"}

    def started(_: list[str], began: float) -> int:
        times.append(began)
        return 7

    monkeypatch.setattr(serve, "downloaded", download)
    monkeypatch.setattr(launch, "main", started)
    assert main([model]) == 7
    if model == "org/name":
        assert times == sorted(times)
        assert len(times) == 2
    else:
        assert times == pytest.approx([process_began()], abs=0.02)
