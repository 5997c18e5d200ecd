"""Values of a config.json, and the refusal of values that are not allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sluice_contract.base import ConfigError
from sluice_contract.config import model_shape

from sluice_runtime.errors import ModelLoadError

Config = Mapping[str, Any]


def refused(key: str, value: object, allowed: str) -> ModelLoadError:
    return ModelLoadError(f"config.json: {key}: {value!r} is not allowed; allowed: {allowed}")


def whole_number(config: Config, key: str, default: int | None = None) -> int:
    try:
        return model_shape.whole_number(config, key, default)
    except ConfigError as error:
        raise refused(error.key, error.value, error.allowed) from None


def positive_number(config: Config, key: str, why: str = "") -> float:
    """Number above 0 at `key`; `why`: text that follows what is allowed in a refusal."""
    value = config.get(key)
    if isinstance(value, int | float) and value is not True and 0 < value < math.inf:
        return float(value)
    raise refused(key, value, f"a number above 0{why}")


def object_of(config: Config, key: str) -> Config | None:
    """Object at `key`; None: it is null or missing."""
    value = config.get(key)
    if not isinstance(value, Mapping | None):
        raise refused(key, value, "an object")
    return value
