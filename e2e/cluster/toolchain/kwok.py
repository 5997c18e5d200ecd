"""KWOK, which acts as the kubelet of nodes that do not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from e2e.cluster.toolchain.go_install import GoProgram, ensure_program

KWOK: Final = GoProgram("sigs.k8s.io/kwok/cmd/kwok", "v0.7.0")


def ensure_kwok() -> Path:
    """The program."""
    return ensure_program(KWOK)
