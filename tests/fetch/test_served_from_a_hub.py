"""`sluice serve hf://org/name`: the model that is downloaded, and what is shown meanwhile."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sluice_fetch.errors import FetchError, RepositoryNotFoundError
from sluice_runtime.process.serve import DownloadText, downloaded, main

from tests.fetch.hub_server import COMMIT, OTHER_COMMIT, Hub

TINY = Path(__file__).parents[2] / "e2e" / "model" / "sluice-tiny"
MODEL = {"uri": "hf://org/name"}


class Terminal(io.StringIO):
    """A terminal that shows everything at once."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def hub_of_the_user(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub and the token as a person has them."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", "secret")


def test_it_is_downloaded_once_and_keeps_its_name(hub: Hub, tmp_path: Path) -> None:
    hub.token = "secret"
    out = io.StringIO()
    folder = tmp_path / "models--org--name" / "snapshots" / COMMIT
    assert downloaded(MODEL, tmp_path, out) == {"uri": str(folder), "name": "name"}
    assert (folder / "config.json").read_bytes() == hub.files["config.json"]
    assert out.getvalue() == (
        f"… downloading org/name at {COMMIT[:12]} (0.01 GB) into {tmp_path}; "
        "after Ctrl-C the next start continues\n"
    )
    again = io.StringIO()
    assert downloaded(MODEL | {"name": "mine"}, tmp_path, again)["name"] == "mine"
    assert again.getvalue() == ""


def test_a_revision_is_that_of_the_hub_and_no_setting_of_the_engine(
    hub: Hub, tmp_path: Path
) -> None:
    hub.revisions["v1"] = OTHER_COMMIT
    model = downloaded(MODEL | {"revision": "v1", "aliases": ["a"]}, tmp_path, io.StringIO())
    assert model["uri"].endswith(OTHER_COMMIT)
    assert model.keys() == {"uri", "name", "aliases"}


def test_without_the_hub_the_last_download_is_served(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_runtime.process.serve.ATTEMPTS", 1)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FetchError):
        downloaded(MODEL, tmp_path, io.StringIO())
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    model = downloaded(MODEL, tmp_path, io.StringIO())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    out = io.StringIO()
    assert downloaded(MODEL, tmp_path, out) == model
    assert "the hub does not answer: hf://org/name stays as of the last download" in out.getvalue()
    with pytest.raises(FetchError):
        downloaded(MODEL | {"revision": "v1"}, tmp_path, io.StringIO())


def test_a_repository_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["org/gone", "--cache", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"sluice serve: hf://org/gone: {RepositoryNotFoundError.reason}: ")
    assert said.count("\n") == 1


def test_an_address_that_no_hub_has_is_unusable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "hub.example")
    assert main(["org/name", "--cache", str(tmp_path)]) == 2
    says = "sluice serve: HF_ENDPOINT: 'hub.example' is not allowed; allowed: http(s)://"
    assert capsys.readouterr().err.startswith(says)


@pytest.mark.process
def test_an_engine_serves_what_was_downloaded(hub: Hub, tmp_path: Path) -> None:
    hub.files = {file.name: file.read_bytes() for file in TINY.iterdir() if file.is_file()}
    words = ["org/name", "--cache", str(tmp_path), "--port", "0", "--set", "threads=1"]
    command = [sys.executable, "-m", "sluice_runtime.process.serve", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as engine:
        assert engine.stderr is not None
        assert any("ready: 'name' answers" in line for line in engine.stderr)
        engine.terminate()
        engine.stderr.read()
        assert engine.wait(30) == 0


def test_a_terminal_shows_progress_on_one_line() -> None:
    out = Terminal()
    text = DownloadText(Path("/cache"), out)
    text.tell("resolved", {"repository": "org/name", "commit": COMMIT})
    fields: dict[str, Any] = {"total": 1_500_000_000, "bytesPerSecond": 0, "etaSeconds": None}
    text.tell("progress", fields | {"bytes": 0})
    moving = {"bytes": 1_200_000_000, "bytesPerSecond": 45_000_000, "etaSeconds": 7}
    text.tell("progress", fields | moving)
    text.says("the hub does not answer; next attempt in 1 s")
    text.tell("progress", fields | moving)
    text.tell("complete", {})
    assert out.getvalue().split("\n")[1:] == [
        "\r\x1b[K  0.00 of 1.50 GB, 0 MB/s\r\x1b[K  1.20 of 1.50 GB, 45 MB/s, 7 s left",
        "… the hub does not answer; next attempt in 1 s",
        "\r\x1b[K  1.20 of 1.50 GB, 45 MB/s, 7 s left",
        "",
    ]
