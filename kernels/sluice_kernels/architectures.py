"""Which GPUs run machine code. Architectures are compute capabilities times ten: 90 is 9.0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

HOPPER: Final = 90


def built_for(architecture: int, built: Iterable[int]) -> int | None:
    """The one of the architectures `built` that runs on `architecture`: itself or, before Hopper,
    an older one of the same generation (newer ones are compiled with what only they have)."""
    usable = [
        other
        for other in built
        if other == architecture
        or (architecture < HOPPER and other < architecture and other // 10 == architecture // 10)
    ]
    return max(usable, default=None)
