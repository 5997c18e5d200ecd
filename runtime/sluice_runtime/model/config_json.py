"""Values of a config.json, and the refusal of values that are not allowed."""

from __future__ import annotations

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


def object_of(config: Config, key: str) -> Config | None:
    """Object under this key; None: it is null or missing."""
    value = config.get(key)
    if not isinstance(value, Mapping | None):
        raise refused(key, value, "an object")
    return value
