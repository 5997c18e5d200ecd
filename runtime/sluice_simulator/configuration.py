"""Builds the scheduler's settings from an engine's configuration and a cost model.

Calls the engine's own functions, with the cost model's accelerator instead of a real one. Settings
that a simulation cannot honour are refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sluice_contract.base import ConfigError
from sluice_contract.config.accelerators import requests_in_pool
from sluice_contract.config.engine import EngineConfig, ModelRef, parse_engine_config
from sluice_contract.config.sizing import (
    CACHE_POLICIES,
    SLACK,
    ResolvedConfig,
    planned_config,
    sized_config,
)
from sluice_runtime.engine.sizing.plan import context_length, scheduler_settings
from sluice_runtime.errors import InvalidConfigError
from sluice_runtime.scheduler.policies import ALIASES, POLICIES
from sluice_runtime.scheduler.settings import SchedulerSettings

from sluice_simulator.costs import Cost
from sluice_simulator.errors import UnusableConfigError

ALL: Final = "all"
NO_MODEL: Final = "dummy://simulated"


def read_config(path: Path | None) -> EngineConfig:
    """The configuration in the file at `path`, which may have only some keys of engine.json; None:
    defaults. The key `model` may be missing.

    Raises:
        UnusableConfigError: names key, value and what is allowed.
    """
    if path is None:
        return EngineConfig(model=ModelRef(uri=NO_MODEL))
    try:
        return parse_engine_config(_with_a_model(path.read_bytes()))
    except OSError as error:
        unread = ConfigError("--config", str(path), f"a readable file ({error.strerror})")
        raise UnusableConfigError(str(unread)) from None
    except ConfigError as error:
        raise UnusableConfigError(f"{path}: {error}") from None


def _with_a_model(text: bytes) -> str | bytes:
    try:
        settings = json.loads(text)
    except ValueError:
        return text  # reading the configuration will report the error
    if not isinstance(settings, dict) or "model" in settings:
        return text
    return json.dumps({"model": {"uri": NO_MODEL}} | settings)


def policies_of(text: str | None, config: EngineConfig) -> Sequence[str]:
    """Policies to simulate. `text`: a comma-separated list, or `all` for every policy that the
    configuration allows; None: the configuration's policy.

    Raises:
        UnusableConfigError: a name that the scheduler does not have.
    """
    if text == ALL:
        caches = config.prefix_cache is not False
        useless = {name for name in CACHE_POLICIES if not caches}
        useless |= set() if _promises_ttft(config) else {SLACK}
        return [name for name in POLICIES if name not in useless]
    names = [_configured(config)] if text is None else text.split(",")
    for name in names:
        if name not in POLICIES.keys() | ALIASES.keys():
            allowed = ", ".join([*POLICIES, *ALIASES, ALL])
            raise UnusableConfigError(f"--policy: {name!r} is not allowed; allowed: {allowed}")
    return names


def _configured(config: EngineConfig) -> str:
    return config.scheduling_policy or (SLACK if _promises_ttft(config) else "fcfs")


def _promises_ttft(config: EngineConfig) -> bool:
    return config.slo is not None and config.slo.ttft_milliseconds is not None


def settings_for(config: EngineConfig, cost: Cost, policy: str) -> SchedulerSettings:
    """Settings of the scheduler, on the cost model's accelerator.

    Raises:
        UnusableConfigError: a setting that a simulation with this cost model cannot honour.
    """
    _check(config, cost)
    chosen = config.model_copy(update={"scheduling_policy": policy})
    try:
        planned = planned_config(chosen, cost.accelerator)
        context = context_length(planned, cost.context_length)
    except (ConfigError, InvalidConfigError) as error:
        raise UnusableConfigError(str(error)) from None
    pool_tokens = planned.kv_pool_tokens or cost.kv_pool_tokens
    # A real engine may choose fewer, because of memory for sampling, which cost models do not have.
    rows = requests_in_pool(pool_tokens, planned.cuda_graph_max_batch)
    sized = planned if isinstance(planned, ResolvedConfig) else sized_config(planned, rows)
    pages = max(1, pool_tokens // sized.page_size)
    return scheduler_settings(sized, context, pages, cost.layers)


def _check(config: EngineConfig, cost: Cost) -> None:
    devices = max(1, cost.accelerator.count)
    if (config.tensor_parallel_size or devices) != devices:
        allowed = f"{devices} (the cost model {cost.name})"
        error = ConfigError("tensorParallelSize", config.tensor_parallel_size, allowed)
        raise UnusableConfigError(str(error))
    if config.kv_transfer is not None:
        allowed = "nothing (one engine is simulated, without a hand-over)"
        raise UnusableConfigError(str(ConfigError("kvTransfer", config.kv_transfer, allowed)))
    if config.host_cache is not None:
        allowed = "nothing (a replay has no pages to copy)"
        raise UnusableConfigError(str(ConfigError("hostCache", config.host_cache, allowed)))
    if config.speculation is not None:
        allowed = "nothing (a trace has no tokens to draft from)"
        raise UnusableConfigError(str(ConfigError("speculation", config.speculation, allowed)))
