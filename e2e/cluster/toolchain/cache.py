"""The folder of builds and tools that are costly to make again, outside the tree."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder in which builds are kept between runs: SLUICE_CACHE, else in the user's cache
    folder."""
    own = environment.get("SLUICE_CACHE")
    if own:
        return Path(own)
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sluice"
