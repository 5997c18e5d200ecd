"""A rank after the first: `python -m sluice_runtime.engine.rank`, started by rank 0.

Loads its part of the model and computes the steps that rank 0 announces. It takes no request, draws
no token and decides nothing; its rows and pages equal rank 0's because its steps do.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import signal
import sys
from collections import deque
from contextlib import closing, nullcontext
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

from sluice_contract.cluster.labels import Role
from sluice_contract.config.sizing import ResolvedConfig
from sluice_contract.log_lines import log_to_stderr

from sluice_runtime.engine.sizing.host import set_library_variables
from sluice_runtime.errors import StartupError
from sluice_runtime.model.files import resolve_model
from sluice_runtime.parallel.processes import MEETING, copies_for, read_config, steps_for
from sluice_runtime.process import exits
from sluice_runtime.process.start import uncollected

if TYPE_CHECKING:
    from sluice_runtime.engine.runner import LaunchedStep
    from sluice_runtime.kv.host_blocks import RankShare
    from sluice_runtime.kv.pool import PagePool

logger = logging.getLogger("sluice.engine")

_PR_SET_PDEATHSIG: Final = 1
_AHEAD: Final = 1
"""Steps that rank 0 launches before an earlier one has landed."""


def main(arguments: list[str] | None = None) -> int:
    """Runs until rank 0 announces no more steps, or dies; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m sluice_runtime.engine.rank", description=__doc__
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args(arguments)
    _end_with(options.parent)
    log_to_stderr(logging.WARNING, f"rank {options.rank}: ")
    try:
        _follow(read_config(options.folder), options.folder, options.rank)
    except StartupError as error:
        return exits.give_up(error.reason, f"rank {options.rank}: {error}", exits.STARTUP)
    except Exception:
        logger.exception("the process failed")
        return exits.FAILED
    return exits.OK


def _end_with(parent: int) -> None:
    """Ignores signals, which are for rank 0, and makes the process end when its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before prctl was called
        sys.exit(exits.FAILED)


def _follow(config: ResolvedConfig, folder: Path, rank: int) -> None:
    files = resolve_model(config.model)
    set_library_variables()
    with uncollected():
        # Imports torch, which takes seconds, so other errors are reported first.
        from sluice_runtime.engine.build import build_engine
        from sluice_runtime.engine.device import place_of
        from sluice_runtime.engine.prepare import prepare
        from sluice_runtime.kv.host_blocks import RankShare
        from sluice_runtime.parallel.group import joined_group

    place, size = place_of(config.accelerator, rank), config.tensor_parallel_size
    with joined_group(rank, size, place, folder / MEETING) as group:
        engine = build_engine(config, files, group=group)
        with closing(engine.runner):
            prepare(config, engine)
            if config.role is not Role.MIXED:
                copies = engine.model.spec.key_copies(size)
                copier = (engine.pool, folder, RankShare(rank, size, copies))
                Thread(target=_copy, args=copier, name="kv-copies", daemon=True).start()
            adapters = engine.adapters
            launched: deque[LaunchedStep] = deque()
            with adapters.following(lambda: None) if adapters else nullcontext():
                for batch in steps_for(folder, rank):
                    if adapters is not None:
                        adapters.take_change_beside_rows()
                    launched.append(engine.runner.launch(batch))
                    if len(launched) > _AHEAD:
                        launched.popleft().land()


def _copy(pool: PagePool, folder: Path, share: RankShare) -> None:
    """Copies pages in a separate thread while steps run; if the thread fails, the process ends."""
    from sluice_runtime.parallel.page_copies import copy_pages

    try:
        with copies_for(folder, share.rank) as requests:
            copy_pages(pool, requests, share)
    except Exception:
        logger.exception("copies of pages failed")
        os._exit(exits.FAILED)


if __name__ == "__main__":
    # Ends at once: otherwise torch would leave the group and, after an error, wait for the other
    # ranks, which wait until this process ends.
    os._exit(main())
