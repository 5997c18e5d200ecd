"""Errors that prevent a simulation; `str()` is one line for the user."""

from __future__ import annotations

from pathlib import Path
from typing import Final

INSTALL: Final = "in a checkout, scripts/setup or: pip install '.[operator,simulate]'"
"""How to install the simulator's requirements; names no package of an index."""


class SimulatorError(Exception):
    """Base of the tree."""


class TraceError(SimulatorError):
    """A trace that cannot be read: file, line, value and what is allowed."""

    def __init__(self, path: Path | str, line: int, value: object, allowed: str) -> None:
        super().__init__(f"{path}:{line}: {value!r} is not allowed; allowed: {allowed}")


class UnusableFileError(SimulatorError):
    """A file is missing, or is not of the expected kind."""


class CostError(SimulatorError):
    """A cost model cannot be used; names file, key, value and what is allowed."""


class UnusableConfigError(SimulatorError):
    """An engine configuration or an option with which no simulation can run."""
