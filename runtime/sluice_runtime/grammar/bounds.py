"""What the processes for grammars may take, and bound themselves to at their start."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from typing import Final

SHARE: Final = 0.125
"""Of a processor: who gets less of one is not waited for. The niceness of a compile process leaves
it a quarter beside an engine that uses all."""


def bound_this_process(memory_bytes: int, oom_score: int) -> None:
    """It writes no core, and has `memory_bytes` of addresses: a vocabulary of
    150,000 tokens takes 200 MiB. `oom_score`: of 1000, who has most is the first that the kernel
    ends when a pod has no memory left."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(oom_score))


def without_torch() -> None:
    """tvm_ffi imports it where it finds it: two seconds and 300 MB, for nothing that is used."""
    sys.modules["torch"] = None  # type: ignore[assignment]
