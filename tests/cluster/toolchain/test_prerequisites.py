"""Debian packages are installed where they are missing, or named."""

from __future__ import annotations

import os

import pytest

from e2e.cluster.errors import ClusterError
from e2e.cluster.toolchain import prerequisites
from e2e.cluster.toolchain.prerequisites import Package, ensure_packages, require_packages


def test_packages_that_are_there_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prerequisites, "run", pytest.fail)
    ensure_packages([Package("coreutils", "ls"), Package("base-files", "/bin/sh")])


def test_missing_packages_are_named_to_who_may_not_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ClusterError, match="absent-package"):
        ensure_packages([Package("absent-package", "/no/such/file")])


def test_what_a_test_needs_is_named_with_the_command_that_installs_it() -> None:
    require_packages([Package("coreutils", "ls")], "make tools")
    with pytest.raises(ClusterError, match="not installed: absent-package; run `make tools` first"):
        require_packages([Package("absent-package", "/no/such/file")], "make tools")
