"""Helm, by which the chart is checked and installed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from e2e.cluster.toolchain.go_install import GoProgram, ensure_program

HELM: Final = GoProgram("helm.sh/helm/v4/cmd/helm", "v4.3.1")


def ensure_helm() -> Path:
    """The program."""
    return ensure_program(HELM)
