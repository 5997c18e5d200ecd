"""KWOK is built once, by a `go install` of one version."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.toolchain import kwok


def test_it_is_built_into_the_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Writes its own arguments where `go install` would put the program.
    fake = tmp_path / "go"
    fake.write_text('#!/bin/sh\nmkdir -p "$GOBIN" && echo "$@" > "$GOBIN/kwok"\n')
    fake.chmod(0o755)
    monkeypatch.setattr(kwok, "ensure_go", lambda: fake)
    cache = tmp_path / "cache"
    cache.mkdir()
    built = kwok.ensure_kwok(cache)
    assert built.read_text().strip() == f"install {kwok.PACKAGE}@{kwok.VERSION}"
    fake.unlink()
    assert kwok.ensure_kwok(cache) == built
