"""A program is built once, by a `go install` of one version."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.toolchain import go_install
from e2e.cluster.toolchain.containerd import CONTAINERD
from e2e.cluster.toolchain.helm import HELM
from e2e.cluster.toolchain.kwok import KWOK


@pytest.mark.parametrize("program", [HELM, KWOK], ids=lambda program: program.name)
def test_it_is_built_into_the_cache_once(
    program: go_install.GoProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Writes its own arguments where `go install` would put the program.
    fake = tmp_path / "go"
    fake.write_text(f'#!/bin/sh\nmkdir -p "$GOBIN" && echo "$@" > "$GOBIN/{program.name}"\n')
    fake.chmod(0o755)
    monkeypatch.setattr(go_install, "ensure_go", lambda: fake)
    cache = tmp_path / "cache"
    cache.mkdir()
    built = go_install.ensure_program(program, cache)
    assert built.read_text().split()[-1] == f"{program.package}@{program.version}"
    fake.unlink()
    assert go_install.ensure_program(program, cache) == built


def test_what_belongs_together_is_built_together() -> None:
    folder = "github.com/containerd/containerd/v2/cmd"
    assert CONTAINERD.packages == [
        f"{folder}/{name}@{CONTAINERD.version}"
        for name in ("containerd", "containerd-shim-runc-v2", "ctr")
    ]
