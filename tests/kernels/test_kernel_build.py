"""The library is built once for its sources, its torch and its compiler; without one it is not."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[2] / "kernels" / "build.py"


@pytest.fixture
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernels_build", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def built(
    builder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[], int]:
    """Runs the command on an empty folder with a compiler that only counts; returns its count."""
    calls: list[Path] = []

    def compile_into(folder: Path) -> None:
        calls.append(folder)
        (folder / builder.LIBRARY).write_bytes(b"library")

    def run() -> int:
        assert builder.main() == 0
        return len(calls)

    monkeypatch.setattr(builder, "build", compile_into)
    monkeypatch.setattr(builder, "compiler_version", lambda: "12.0")
    monkeypatch.setattr(sys, "argv", ["build.py", str(tmp_path)])
    return run


def test_what_was_built_is_left_alone(built: Callable[[], int]) -> None:
    assert [built(), built()] == [1, 1]


def test_another_torch_or_compiler_builds_anew(
    builder: ModuleType, built: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [built()]
    monkeypatch.setattr(builder, "version", lambda _: "99.0")
    seen.append(built())
    monkeypatch.setattr(builder, "compiler_version", lambda: "99.0")
    seen.append(built())
    assert seen == [1, 2, 3]


def test_a_library_that_is_gone_is_built_anew(built: Callable[[], int], tmp_path: Path) -> None:
    built()
    (tmp_path / "_native.so").unlink()
    assert built() == 2


def test_without_a_compiler_nothing_is_built_and_that_is_said(
    builder: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(sys, "argv", ["build.py", str(tmp_path)])
    assert builder.main() == 0
    assert not list(tmp_path.iterdir())
    assert "no C++ compiler" in capsys.readouterr().err
