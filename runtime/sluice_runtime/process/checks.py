"""Checks of an engine's configuration that need neither the model's weights nor a device."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.cluster.labels import Role
from sluice_contract.config.engine import EngineConfig, read_engine_config
from sluice_contract.config.sizing import planned_config
from sluice_contract.config.supported import unsupported, unused_without_adapters
from sluice_contract.wire.handover import configured_keys

from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.model import files as model_files
from sluice_runtime.process.threads import processors

_LIMIT: Final = "OMP_THREAD_LIMIT"


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
    _check_thread_limit(config.threads or processors(), os.environ)
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


def warnings(config: EngineConfig) -> Iterator[str]:
    """Settings in the configuration that have no effect."""
    if not config.adapters and config.adapters_file is None:
        yield from unused_without_adapters(config)


def _check_thread_limit(threads: int, environment: Mapping[str, str]) -> None:
    """Checks that OpenMP may start all threads: the kernels' threads synchronise in every layer, so
    none may be missing.

    Raises:
        InvalidConfigError: OMP_THREAD_LIMIT is lower.
    """
    limit = environment.get(_LIMIT, "")
    if limit.strip().isdecimal() and int(limit) < threads:
        allowed = f"at least {threads} (threads), or leaving it out"
        raise InvalidConfigError(str(ConfigError(_LIMIT, limit, allowed)))
