"""Where the kernel keeps the limits of this process's control groups, versions 1 and 2.

Reads files below `root`; knows neither memory nor processors.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/")


def folders(root: Path, controller: str) -> list[Path]:
    """The process's own group and all above it: the tightest limit holds."""
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
    """Content of the file; empty where there is no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """The number in the file; None where there is none, such as `max`."""
    try:
        return int(text(path))
    except ValueError:
        return None
