"""KEDA is built once, from the module that was looked at and from no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.cluster.errors import ClusterError, CommandFailedError
from e2e.cluster.toolchain import keda


def fake_go(folder: Path, checksum: str) -> Path:
    """Downloads a module with one manifest, and writes its own arguments as both programs."""
    (folder / "source" / "config").mkdir(parents=True)
    (folder / "source" / "config" / "role.yaml").write_text("kind: ClusterRole")
    module = json.dumps({"Sum": checksum, "Dir": str(folder / "source")})
    fake = folder / "go"
    build = 'while [ "$1" != -o ]; do shift; done; echo "$@" | tee "$2operator" > "$2adapter"'
    fake.write_text(f"#!/bin/sh\nif [ \"$1\" = mod ]; then echo '{module}'; exit; fi\n{build}\n")
    fake.chmod(0o755)
    return fake


def test_it_is_built_into_the_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_go(tmp_path, keda.CHECKSUM)
    monkeypatch.setattr(keda, "ensure_go", lambda: fake)
    built = keda.ensure_keda(tmp_path / "cache")
    assert built.operator.read_text().split()[-2:] == ["./cmd/operator", "./cmd/adapter"]
    assert built.adapter.exists()
    assert (built.manifests / "role.yaml").read_text() == "kind: ClusterRole"
    fake.unlink()
    assert keda.ensure_keda(tmp_path / "cache") == built


def test_another_module_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keda, "ensure_go", lambda: fake_go(tmp_path, "h1:other"))
    with pytest.raises(ClusterError, match=r"h1:other; expected: h1:R6z2"):
        keda.ensure_keda(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*")), "nothing is left that looks like a build"


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_go(tmp_path, keda.CHECKSUM)
    fake.write_text(f"{fake.read_text()}exit 1\n")
    monkeypatch.setattr(keda, "ensure_go", lambda: fake)
    with pytest.raises(CommandFailedError):
        keda.ensure_keda(tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*"))
