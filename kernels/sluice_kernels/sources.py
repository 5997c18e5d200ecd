"""Records which sources a library was made from. Imports no torch: the builder checks before
loading it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

STAMP: Final = "_native.stamp"
"""Name of a file next to a library. The file says what the library was made from and with, and ends
with the digest of its sources."""


def digest(folder: Path) -> str:
    """Digest of all files of a folder, by name and content."""
    found = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def is_stale(library: Path, sources: Path) -> bool:
    """Whether `sources` differ from those that the library was built from. False if the stamp or
    the sources are absent, as in images, whose libraries are never stale."""
    stamp = library.with_name(STAMP)
    if not (stamp.exists() and sources.is_dir()):
        return False
    return stamp.read_text().split()[-1:] != [digest(sources)]
