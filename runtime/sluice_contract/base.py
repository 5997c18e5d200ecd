"""The pydantic base of everything that crosses a process or API boundary.

Knows how fields are spelled outside (camelCase) and how a refusal reads; knows no field itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel


class ContractModel(BaseModel):
    """A frozen value; camelCase outside, snake_case inside; unknown keys are refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        hide_input_in_errors=True,
    )

    def to_json_dict(self) -> dict[str, Any]:
        """The value as it is written to a file or a CRD: camelCase, absent keys left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ConfigError(ValueError):
    """A configuration that cannot be used. `str()` is one line: key, value, what is allowed."""

    def __init__(self, key: str, value: object, allowed: str) -> None:
        self.key = key
        self.value = value
        self.allowed = allowed
        super().__init__(f"{key}: {value!r} is not allowed; allowed: {allowed}")


def config_error_from(error: ValidationError, known_keys: Sequence[str] = ()) -> ConfigError:
    """The first finding of a pydantic error as one line: key, value, what is allowed."""
    finding = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in finding["loc"]) or "(root)"
    if finding["type"] == "extra_forbidden":
        return ConfigError(key, finding.get("input"), "known keys: " + ", ".join(known_keys))
    if finding["type"] == "missing":
        return ConfigError(key, None, "a value: the key is required")
    return ConfigError(key, finding.get("input"), finding["msg"].removeprefix("Value error, "))
