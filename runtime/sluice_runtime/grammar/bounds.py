"""What a process bounds itself to, before it touches what others have sent."""

from __future__ import annotations

import resource
from contextlib import suppress


def bound_this_process(memory_bytes: int, oom_score: int) -> None:
    """It writes no core, and has `memory_bytes` of addresses: a vocabulary of
    150,000 tokens takes 200 MiB. `oom_score`: of 1000, who has most is the first that the kernel
    ends when a pod has no memory left."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(oom_score))
