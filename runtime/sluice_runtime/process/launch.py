"""Starts one engine from its file: checks it, then supervises API process and engine process.

Errors that can be found without a model or a device are reported here. Meanwhile the engine process
loads its libraries, which takes longest, and then waits for its options. So nothing that takes time
is imported before it runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sluice_runtime.process.child import started_child
from sluice_runtime.process.threads import configured_threads, thread_environment

if TYPE_CHECKING:
    from sluice_runtime.process.accelerator import FindAccelerator


def main(
    arguments: Sequence[str] | None = None,
    find: FindAccelerator | None = None,
    began: float | None = None,
) -> int:
    """Runs one engine until a signal stops it; returns the exit code. `find`: finds the
    accelerator; None: `find_accelerator`. `began`: `time.monotonic()` when the start began; None:
    now."""
    began = time.monotonic() if began is None else began
    parser = argparse.ArgumentParser(
        prog="python -m sluice_runtime", description="Serves one model over the OpenAI API."
    )
    parser.add_argument("--config", type=Path, required=True, help="the EngineConfig, as JSON")
    path: Path = parser.parse_args(arguments).config
    environment = thread_environment(configured_threads(path))
    with _waiting_engine(environment) as engine:
        from sluice_runtime.errors import StartupError
        from sluice_runtime.process import exits
        from sluice_runtime.process.accelerator import find_accelerator
        from sluice_runtime.process.checks import checked_config, warnings
        from sluice_runtime.process.supervisor import Supervisor
        from sluice_runtime.wire.endpoint import private_endpoint

        try:
            config = checked_config(path)
            for warning in warnings(config):
                print(f"warning: {warning}", file=sys.stderr)
            accelerator = (find or find_accelerator)(config)
        except StartupError as error:
            return exits.give_up(error.reason, str(error), exits.STARTUP)
        with private_endpoint() as endpoint:
            options = [
                *("--config", str(path), "--endpoint", endpoint),
                *("--accelerator", accelerator.model_dump_json(by_alias=True)),
            ]
            _continue(engine, [*options, "--began", f"{began:.3f}"])
            api = [sys.executable, "-m", "sluice_runtime.server", *options]
            return Supervisor(environment).run(api=api, engine=engine)


@contextmanager
def _waiting_engine(environment: Mapping[str, str]) -> Iterator[subprocess.Popen[str]]:
    """An engine process that waits for its options once it has loaded its libraries. It is killed
    when the context ends, unless the supervisor has ended it."""
    command = [sys.executable, "-m", "sluice_runtime.engine", "--wait"]
    with started_child(command, environment, has_input=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _continue(engine: subprocess.Popen[str], options: Sequence[str]) -> None:
    """Sends the engine process its options. The supervisor notices if it has ended."""
    assert engine.stdin is not None
    with suppress(BrokenPipeError), engine.stdin:
        engine.stdin.write(json.dumps(options) + "\n")
