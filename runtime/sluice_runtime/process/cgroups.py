"""Finds and reads the limits of this process's control groups, versions 1 and 2.

Reads files below `root`; knows neither memory nor processors.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def folders(root: Path, controller: str) -> list[Path]:
    """Folders of the process's control group and of all groups above it; the lowest of their limits
    holds."""
    mount = root / "sys/fs/cgroup"
    groups = [mount, mount / controller]
    for line in text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = mount / controller if controllers else mount
        parts = [part for part in path.split("/") if part]
        groups += [base.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1)]
    return groups


def text(path: Path) -> str:
    """Content of a file; empty if it does not exist."""
    try:
        return path.read_text()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """The number in a file; None for other content, such as `max`."""
    try:
        return int(text(path))
    except ValueError:
        return None
