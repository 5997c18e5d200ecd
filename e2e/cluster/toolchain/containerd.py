"""containerd, its shim and its client: the container runtime of the bare node."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from e2e.cluster.toolchain.go_install import GoProgram, ensure_program

CONTAINERD: Final = GoProgram(
    "github.com/containerd/containerd/v2/cmd/containerd",
    "v2.2.9",
    beside=("containerd-shim-runc-v2", "ctr"),
)


def ensure_containerd() -> Path:
    """The folder with the three programs."""
    return ensure_program(CONTAINERD).parent
