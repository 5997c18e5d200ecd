"""The library is built once for its sources, its torch and its compiler; without one it is not."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from sluice_kernels import native

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
) -> Callable[..., int]:
    """Runs the command on a folder with a compiler that only counts; returns its count, which is
    also what the library consists of."""
    calls: list[Path] = []

    def compile_into(folder: Path) -> None:
        calls.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / builder.LIBRARY).write_text(str(len(calls)))

    def run(*words: str) -> int:
        assert builder.main(list(words or (str(tmp_path),))) == 0
        return len(calls)

    monkeypatch.setattr(builder, "build", compile_into)
    monkeypatch.setattr(builder, "compiler_version", lambda: "12.0")
    return run


def test_what_was_built_is_left_alone(built: Callable[..., int]) -> None:
    assert [built(), built()] == [1, 1]


def test_another_torch_or_compiler_builds_anew(
    builder: ModuleType, built: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [built()]
    monkeypatch.setattr(builder, "version", lambda _: "99.0")
    seen.append(built())
    monkeypatch.setattr(builder, "compiler_version", lambda: "99.0")
    seen.append(built())
    assert seen == [1, 2, 3]


def test_a_library_that_is_gone_is_built_anew(built: Callable[..., int], tmp_path: Path) -> None:
    built()
    (tmp_path / "_native.so").unlink()
    assert built() == 2


def test_another_clone_takes_the_library_from_the_cache_unless_it_differs(
    builder: ModuleType,
    built: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    cache = ("--cache", str(tmp_path / "cache"))
    seen = [built(str(tmp_path / clone), *cache) for clone in ("one", "two", "two")]
    monkeypatch.setenv("CXXFLAGS", "-march=native")
    seen += [built(str(tmp_path / clone), *cache) for clone in ("two", "three")]
    monkeypatch.delenv("CXXFLAGS")
    seen.append(built(str(tmp_path / "two"), *cache))
    assert seen == [1, 1, 1, 2, 2, 2]
    libraries = [tmp_path / clone / builder.LIBRARY for clone in ("one", "two", "three")]
    assert [library.read_text() for library in libraries] == ["1", "1", "2"]


def test_the_cache_keeps_the_last_libraries(
    builder: ModuleType,
    built: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    cache = tmp_path / "cache"
    for number in range(1, 11):
        monkeypatch.setenv("CXXFLAGS", f"-DN={number}")
        built(str(tmp_path / "clone"), "--cache", str(cache))
        (made,) = (path for path in cache.iterdir() if path.read_text() == str(number))
        os.utime(made, (number, number))
    kept = sorted(int(path.read_text()) for path in cache.iterdir())
    assert kept == list(range(11 - builder.CACHED, 11))


def test_without_a_compiler_nothing_is_built_and_that_is_said(
    builder: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert builder.main([str(tmp_path), "--cache", str(tmp_path / "cache")]) == 0
    assert not list(tmp_path.iterdir())
    assert "no C++ compiler" in capsys.readouterr().err


def test_a_library_that_cannot_be_built_anew_does_not_stay(
    builder: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fails(folder: Path) -> None:
        raise RuntimeError("the compiler is at fault")

    (tmp_path / builder.LIBRARY).write_text("old")
    monkeypatch.setattr(builder, "build", fails)
    with pytest.raises(RuntimeError):
        builder.main([str(tmp_path)])
    assert not (tmp_path / builder.LIBRARY).exists()


def test_a_library_of_other_sources_is_not_loaded(
    built: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    built()
    library = tmp_path / "_native.so"
    missing = native.load(library)  # no library at all, but of these sources
    assert missing is not None
    assert "cannot be loaded" in missing.message
    changed = tmp_path / "csrc"
    shutil.copytree(native.SOURCES, changed)
    (changed / "draw.h").write_text("// other")
    monkeypatch.setattr(native, "SOURCES", changed)
    missing = native.load(library)
    assert missing is not None
    assert missing.message.startswith("_native.so was built from other sources (make setup")
