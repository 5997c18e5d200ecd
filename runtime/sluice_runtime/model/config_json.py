"""Values of a config.json, and how one that is not allowed is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sluice_runtime.errors import ModelLoadError

Config = Mapping[str, Any]


def refused(key: str, value: object, allowed: str) -> ModelLoadError:
    return ModelLoadError(f"config.json: {key}: {value!r} is not allowed; allowed: {allowed}")


def whole_number(config: Config, key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise refused(key, value, "a whole number from 1")
    return value


def object_of(config: Config, key: str) -> Config | None:
    """None: it is null or missing."""
    value = config.get(key)
    if not isinstance(value, Mapping | None):
        raise refused(key, value, "an object")
    return value
