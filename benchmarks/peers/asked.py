"""What the peers' scripts share: a workload on stdin, then numbers, each answered by a run.

Needs nothing but Python, since it is imported in the peers' own environments.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

# What libraries print must not come between the answers.
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def workload() -> Any:
    """The workload: the first line of standard input."""
    return json.loads(sys.stdin.readline())


def answer(prepared: Callable[[int], Callable[[], int]]) -> None:
    """Answers every further line. `prepared` takes the number in the line and returns the run to be
    timed, which returns its number of tokens."""
    for line in sys.stdin:
        run = prepared(int(line))
        began, cpu_began = time.perf_counter(), time.process_time()
        tokens = run()
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
        measured = {"tokens": tokens, "seconds": seconds, "cpu_seconds": cpu}
        print(json.dumps(measured), file=ANSWERS, flush=True)
