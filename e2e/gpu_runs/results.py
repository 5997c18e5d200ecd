"""The file of results: a JSON object a line, written as soon as it is known.

A case is done when a line says that it passed, on this kind of device and with these sources.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SOURCES = ("runtime", "kernels", "tests/gpu", "tests/runtime", "tests/kernels", "tests/examples.py",
           "e2e/gpu_runs", "benchmarks", "uv.lock")  # fmt: skip
BUILT = "kernels/sluice_kernels/flashinfer_built/manifest.json"


@dataclass(frozen=True)
class Outcome:
    """How a case ended."""

    case: str
    state: str
    """passed, failed or timed-out; measured: one figure of a case that still runs."""
    seconds: float
    figures: list[dict[str, Any]] = field(default_factory=list)
    """The case's figures: the JSON lines of its output."""
    tail: list[str] = field(default_factory=list)
    """The end of its output, unless it passed."""


@dataclass(frozen=True)
class Setting:
    """The conditions under which a result holds."""

    device: str
    sources: str
    """`sources_digest`"""
    scale: str = "1"
    """Value of SLUICE_BENCH_SCALE: results of another scale do not count."""


def sources_digest(root: Path) -> str:
    """A digest of the files that decide what is computed, including kernels that were built
    ahead."""
    digest = hashlib.sha256()
    if (built := root / BUILT).is_file():
        digest.update(built.read_bytes())
    for name in SOURCES:
        start = root / name
        files = [start] if start.is_file() else sorted(start.rglob("*.py"))
        for file in files:
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def done(lines: Iterable[str], setting: Setting) -> set[str]:
    """Cases that need not be run again. Lines that are not ours are skipped, for example half a
    line that was being written when a lease ended."""
    found: set[str] = set()
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, Mapping) and entry.items() >= (asdict(setting) | PASSED).items():
            found.add(str(entry.get("case")))
    return found


PASSED = {"state": "passed"}


def line_of(outcome: Outcome, setting: Setting) -> str:
    return json.dumps({**asdict(setting), **asdict(outcome)})
