"""How many examples a property is tried with: the test says it, the profile scales it."""

from __future__ import annotations

import os
from typing import Any, Final

from hypothesis import Phase, settings

PERCENT: Final = {"check": 25, "mutate": 100, "full": 1000}
"""Of the examples that a test asks for, by profile. `full` alone draws others in every run."""


def register_profiles() -> None:
    """None has a deadline: how long an example takes depends on what else the machine does."""
    for name, percent in PERCENT.items():
        drawn: dict[str, Any] = {"derandomize": True, "database": None}
        if name == "mutate" or (name == "check" and os.environ.get("CI")):
            # Whether an example fails is asked, not for the smallest one: that takes minutes.
            drawn["phases"] = [Phase.explicit, Phase.generate]
        if name == "full":
            drawn = {"derandomize": False, "print_blob": True}
        settings.register_profile(name, deadline=None, max_examples=percent, **drawn)
    settings.load_profile("check")


def examples(count: int, **others: Any) -> settings:
    """Settings of a property that asks for `count` examples."""
    scaled = max(1, count * settings().max_examples // 100)
    # Also without the profiles, as in runs on a GPU.
    return settings(max_examples=scaled, deadline=None, **others)
