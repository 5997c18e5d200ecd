"""Engines whose steps take as long as on an accelerator, though only CPUs compute them.

Mounted as `sitecustomize.py` into the pods of a story's engines, with PACED_STEP_SECONDS; no image
has this file. Python imports it at its start. Each step of the engine process then takes at least
that time, and the processor is idle for the rest of it. So several engines fit on a machine of few
cores, and each is full when it has its largest number of running answers.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Final

ENGINE_PROCESS: Final = "sluice_runtime.engine"


def pace(step_seconds: float) -> None:
    """Makes each later step of this process take `step_seconds` or more."""
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
