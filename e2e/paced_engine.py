"""Engines whose steps take as long as on an accelerator, though nothing but CPUs computes them.

Mounted as `sitecustomize.py` into the pods of a story's engines, with PACED_STEP_SECONDS; no image
has this file. Python imports it at its start. A step of the engine process then takes that long at
least, and the processor is idle for the rest of it. So a machine of few cores holds several
engines, and what fills them is the number of answers that they run at once.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Final

ENGINE_PROCESS: Final = "sluice_runtime.engine"


def pace(step_seconds: float) -> None:
    """From now on each step of this process takes `step_seconds` or more."""
    from sluice_runtime.engine.sizing.host import set_library_variables

    set_library_variables()  # torch reads them once, and is imported below
    from sluice_runtime.engine.runner import LaunchedStep, Runner
    from sluice_runtime.scheduler.batch import Batch

    launch = Runner.launch

    def paced(self: Runner, batch: Batch) -> LaunchedStep:
        ends = time.monotonic() + step_seconds
        step = launch(self, batch)
        time.sleep(max(0.0, ends - time.monotonic()))
        return step

    Runner.launch = paced  # type: ignore[method-assign]


if ENGINE_PROCESS in sys.orig_argv:
    pace(float(os.environ["PACED_STEP_SECONDS"]))
