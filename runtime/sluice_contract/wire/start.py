"""Phases of an engine's start: their names, and the text about a start in logs, status and
messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Phase = Literal["launch", "imports", "device", "ranks", "weights", "pool", "warm-up", "graphs"]
ENGINE_PHASES: Final[Mapping[Phase, str]] = {
    "launch": "the first process starts, before the engine process does",
    "imports": "Python and its libraries are loaded",
    "device": "the device is set up",
    "ranks": "the other ranks start and join",
    "weights": "the weights are read",
    "pool": "memory is measured, and the KV pool allocated",
    "warm-up": "first steps run",
    "graphs": "the first CUDA graphs are captured",
}
"""Phases that an engine measures, in their order, and what happens in them."""
POD_PHASES: Final[Mapping[str, str]] = {
    "model": "init containers fetch or copy the model",
    "image": "images are pulled, and the container is created",
}
"""Phases before an engine's own, from the times in the status of its pod."""
SHOWN_SHARE: Final = 0.01
"""Least share of a start for a phase to be named in a text."""
SHOWN_SECONDS: Final = 0.1
"""Precision of a text."""


def start_text(seconds: float, phases: Mapping[str, float]) -> str:
    """`12.4 s: weights 7.1 s, imports 3.0 s, rest 2.3 s`: the longest phase first, and in the rest
    the time of no phase. The seconds alone without phases, and where these take longer, as those of
    another start can."""
    rest = seconds - sum(phases.values())
    if not phases or rest < -SHOWN_SECONDS / 2:
        return f"{seconds:.1f} s"
    longest = sorted(phases.items(), key=lambda item: -item[1])
    parts = [*longest, ("rest", rest)]
    shown = [f"{name} {part:.1f} s" for name, part in parts if part >= SHOWN_SHARE * seconds]
    return f"{seconds:.1f} s: {', '.join(shown)}"
