"""Which GPUs can run machine code built for which. Architectures are compute capabilities times
ten: 90 is 9.0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

HOPPER: Final = 90


def built_for(architecture: int, built: Iterable[int]) -> int | None:
    """The architecture among `built` whose code runs on `architecture`: the same one or, before
    Hopper, an older one of its generation. Code for Hopper and later uses features of one
    architecture."""
    usable = [
        other
        for other in built
        if other == architecture
        or (architecture < HOPPER and other < architecture and other // 10 == architecture // 10)
    ]
    return max(usable, default=None)
