"""Which sources a library was made from. Without torch: the builder asks before it loads any."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

STAMP: Final = "_native.stamp"
"""Name of the file next to a library: what it was made from and with, then the digest of its
sources alone."""


def digest(folder: Path) -> str:
    """Digest of all files of a folder, by name and content."""
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def is_stale(library: Path, sources: Path) -> bool:
    """Whether the sources have changed since; False where nothing is known of them, as in images,
    which are made whole."""
    stamp = library.with_name(STAMP)
    if not (stamp.exists() and sources.is_dir()):
        return False
    return stamp.read_text().split()[-1:] != [digest(sources)]
