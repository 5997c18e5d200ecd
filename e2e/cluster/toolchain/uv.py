"""Finds uv: installed, or put into the cache by scripts/setup."""

from __future__ import annotations

import os
import shutil

from e2e.cluster.errors import ClusterError
from e2e.cluster.toolchain.cache import cache_directory


def find_uv() -> str:
    """The command. Raises ClusterError where there is none."""
    own = cache_directory() / "uv" / "bin" / "uv"
    found = shutil.which("uv") or (str(own) if os.access(own, os.X_OK) else None)
    if found is None:
        raise ClusterError(f"no uv here, neither installed nor at {own}: run scripts/setup")
    return found
