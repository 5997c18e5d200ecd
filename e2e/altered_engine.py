"""Engines that are slower than their processor, or that fail.

Mounted as `sitecustomize.py` into the pods of a story's engines; no image has this file. Python
imports it at its start. Variables of the environment say what is altered:

PACED_STEP_SECONDS: each step of the engine process takes at least that time, and the processor is
idle for the rest of it. So several engines fit on a machine of few cores, and each is full when it
has its largest number of running answers.
FAILING_SHARE: share of the requests that are answered with status 500.
CRASHING_SHARE: share of the requests at which the engine ends.
NEVER_READY: other than 0: the engine process does nothing.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from typing import Any, Final

ENGINE_PROCESS: Final = "sluice_runtime.engine"
API_PROCESS: Final = "sluice_runtime.server"


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


def fail(failing_share: float, crashing_share: float) -> None:
    """Makes shares of the later requests of this process fail, or end it."""
    from sluice_runtime.server.handler import RequestHandler

    handle = RequestHandler.handle

    async def failing(self: RequestHandler, *request: Any) -> Any:
        if random.random() < crashing_share:
            os._exit(1)
        if random.random() < failing_share:
            raise RuntimeError("a story's fault")
        return await handle(self, *request)

    RequestHandler.handle = failing  # type: ignore[method-assign,assignment]


def number(variable: str) -> float:
    """A variable of the environment; 0 where it is not set."""
    return float(os.environ.get(variable, "0"))


if ENGINE_PROCESS in sys.orig_argv and number("NEVER_READY"):
    threading.Event().wait()
if ENGINE_PROCESS in sys.orig_argv and (seconds := number("PACED_STEP_SECONDS")):
    pace(seconds)
if API_PROCESS in sys.orig_argv:
    fail(number("FAILING_SHARE"), number("CRASHING_SHARE"))
