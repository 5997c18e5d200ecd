"""The cache of the cluster's binary, and the choice of a Go compiler."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError, CommandFailedError
from e2e.cluster.progress import Step
from e2e.cluster.toolchain import binaries, golang
from e2e.cluster.toolchain.binaries import (
    PROGRAMS,
    SOURCE,
    ensure_binaries,
    linker_flags,
    source_hash,
)
from e2e.cluster.toolchain.cache import cache_directory


@pytest.mark.parametrize("changed", ["go.sum", "main.go", "pause/main.go"])
def test_any_change_of_the_sources_is_another_build(tmp_path: Path, changed: str) -> None:
    copy = tmp_path / "node"
    shutil.copytree(SOURCE, copy)
    assert source_hash(copy) == source_hash()
    with (copy / changed).open("a") as file:
        file.write("\n")
    assert source_hash(copy) != source_hash()


def test_the_binary_is_stamped_with_the_version_in_go_mod() -> None:
    flags = linker_flags("require (\n\tk8s.io/kubernetes v1.34.4\n)\n")
    assert "-X k8s.io/component-base/version.gitVersion=v1.34.4" in flags
    assert "-X k8s.io/component-base/version.gitMinor=34" in flags


def test_a_go_mod_without_kubernetes_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"k8s\.io/kubernetes"):
        linker_flags("module x\n")


def test_a_finished_build_is_taken_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Path] = []

    def fake_build(directory: Path) -> None:
        built.append(directory)
        directory.mkdir()

    monkeypatch.setattr(binaries, "_build", fake_build)
    first = ensure_binaries(tmp_path)
    assert ensure_binaries(tmp_path) == first
    assert built == [first.directory]


def test_a_build_holds_every_program_and_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Writes its own arguments to the file after -o, as a compiler would write a program.
    fake = tmp_path / "go"
    find_output = 'for word; do [ "$last" = -o ] && echo "$@" > "$word"; last=$word; done'
    fake.write_text(f"#!/bin/sh\n{find_output}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(binaries, "ensure_go", lambda: fake)
    built = ensure_binaries(tmp_path / "cache")
    for program in PROGRAMS:
        assert "gitVersion=v1.34" in built.program(program).read_text()
    assert built.pause.read_text().strip().endswith("./pause")


def test_a_build_shows_how_many_of_its_packages_are_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "go"
    build = "printf 'go: downloading a v1\\nfmt\\nk8s.io/a\\n' >&2"
    fake.write_text(
        f'#!/bin/sh\n[ "$1" = list ] && printf "unsafe\\nfmt\\nk8s.io/a\\n" || {build}\n'
    )
    fake.chmod(0o755)
    monkeypatch.setattr(binaries, "ensure_go", lambda: fake)
    shown: list[tuple[int, int, str]] = []
    monkeypatch.setattr(Step, "reached", lambda _, *progress: shown.append(progress))
    ensure_binaries(tmp_path / "cache")
    assert shown == [(1, 3, "packages"), (2, 3, "packages")] * 2


def test_a_build_that_fails_has_its_messages_without_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "go"
    build = "{ printf 'fmt\\nmain.go:1:2: no such thing\\n' >&2; exit 1; }"
    fake.write_text(f'#!/bin/sh\n[ "$1" = list ] || {build}\n')
    fake.chmod(0o755)
    monkeypatch.setattr(binaries, "ensure_go", lambda: fake)
    with pytest.raises(CommandFailedError) as failed:
        ensure_binaries(tmp_path / "cache")
    assert failed.value.output == "main.go:1:2: no such thing\n"


def test_a_build_that_fails_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "ensure_go", lambda: "/bin/false")
    with pytest.raises(CommandFailedError, match="exit status 1"):
        ensure_binaries(tmp_path)
    assert not (tmp_path / f"node-{source_hash()}").exists()


def test_the_cache_follows_the_environment() -> None:
    assert cache_directory({"SLUICE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_directory({"XDG_CACHE_HOME": "/b"}) == Path("/b/sluice")
    assert cache_directory({}) == Path.home() / ".cache" / "sluice"


@pytest.mark.parametrize(
    ("version", "enough"),
    [
        ("go1.26.0", True),
        ("go1.27.1", True),
        ("go1.25.9", False),
        ("go1.19.8", False),
        ("go2.0", True),
        ("", False),
    ],
)
def test_an_old_go_is_not_taken(version: str, enough: bool) -> None:
    assert golang.is_new_enough(version) is enough


def test_without_go_and_uv_the_message_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path))
    with pytest.raises(ClusterError, match=r"no Go 1\.26 or newer"):
        golang.ensure_go()
