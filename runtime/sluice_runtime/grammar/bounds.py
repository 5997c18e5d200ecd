"""Limits that grammar processes set for themselves when they start."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from typing import Final

SHARE: Final = 0.125
"""Of a processor, at least: work that gets less is given up. The niceness of a compile process
leaves it a quarter beside a busy engine."""


def bound_this_process(memory_bytes: int, oom_score: int) -> None:
    """Writes no core dump and has `memory_bytes` of address space: a vocabulary of 150,000 tokens
    takes 200 MiB. `oom_score`: up to 1000; the kernel kills the highest first when a pod has no
    memory left."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(oom_score))


def without_torch() -> None:
    """tvm_ffi imports torch if it can: two seconds and 300 MB for nothing that is used here."""
    sys.modules["torch"] = None  # type: ignore[assignment]
