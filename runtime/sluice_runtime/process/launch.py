"""Starts one engine from its file: checks it, then supervises API process and engine process.

Errors that can be found without a model or a device are reported here, before anything starts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sluice_contract.base import ConfigError
from sluice_contract.cluster.labels import Role
from sluice_contract.config.engine import EngineConfig, read_engine_config
from sluice_contract.config.sizing import planned_config
from sluice_contract.config.supported import unsupported, unused_without_adapters
from sluice_contract.wire.handover import configured_keys

from sluice_runtime.errors import InvalidConfigError, StartupError
from sluice_runtime.model import files as model_files
from sluice_runtime.process import exits
from sluice_runtime.process.accelerator import FindAccelerator, find_accelerator
from sluice_runtime.process.supervisor import Supervisor
from sluice_runtime.process.threads import check_thread_limit, processors, thread_environment
from sluice_runtime.wire.endpoint import private_endpoint


def main(
    arguments: Sequence[str] | None = None,
    find: FindAccelerator = find_accelerator,
    began: float | None = None,
) -> int:
    """Runs one engine until a signal stops it; returns the exit code. `find`: finds the
    accelerator. `began`: `time.monotonic()` when the start began; None: now."""
    began = time.monotonic() if began is None else began
    parser = argparse.ArgumentParser(
        prog="python -m sluice_runtime", description="Serves one model over the OpenAI API."
    )
    parser.add_argument("--config", type=Path, required=True, help="the EngineConfig, as JSON")
    path: Path = parser.parse_args(arguments).config
    try:
        config = checked_config(path)
        for warning in _warnings(config):
            print(f"warning: {warning}", file=sys.stderr)
        accelerator = find(config)
    except StartupError as error:
        return exits.give_up(error.reason, str(error), exits.STARTUP)
    with private_endpoint() as endpoint:
        options = [
            *("--config", str(path), "--endpoint", endpoint),
            *("--accelerator", accelerator.model_dump_json(by_alias=True)),
        ]
        return Supervisor(thread_environment(config.threads)).run(
            api=[sys.executable, "-m", "sluice_runtime.server", *options],
            engine=[
                *(sys.executable, "-m", "sluice_runtime.engine", *options),
                *("--began", f"{began:.3f}"),
            ],
        )


def checked_config(path: Path) -> EngineConfig:
    """The configuration in the file, with every check that needs only the file.

    Raises:
        StartupError: one line naming key, value and what is allowed.
    """
    try:
        config = read_engine_config(path)
    except ConfigError as error:
        raise InvalidConfigError(str(error)) from None
    if found := tuple(_validation_errors(config)):
        raise InvalidConfigError("; ".join(map(str, found)))
    check_thread_limit(config.threads or processors(), os.environ)
    model_files.resolve_model(config.model)
    return config


def _validation_errors(config: EngineConfig) -> Iterator[ConfigError]:
    if config.role is not Role.MIXED:
        try:
            configured_keys(config.handover_key_file, time.monotonic)
        except ConfigError as error:
            yield error
    yield from unsupported(config, on_cpus=config.accelerator is None or config.accelerator.is_cpu)
    try:
        planned_config(config)
    except ConfigError as error:
        yield from error.errors


def _warnings(config: EngineConfig) -> Iterator[str]:
    if not config.adapters and config.adapters_file is None:
        yield from unused_without_adapters(config)
