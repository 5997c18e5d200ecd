"""The pydantic base of everything that crosses a process or API boundary: how fields are spelled
outside (camelCase) and how a refusal reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from sluice_contract.error_text import Model, allowed_of, findings_of, path_of, text_of
from sluice_contract.log_lines import shown, shown_json

UNORDERED: Final[dict[str, Any]] = {"x-kubernetes-list-type": "set"}
"""Schema extra of a list of distinct texts whose order does not matter."""


class ContractModel(BaseModel):
    """A frozen value; camelCase outside, snake_case inside; unknown keys are refused."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        frozen=True,
        strict=True,
        extra="forbid",
        protected_namespaces=(),
        hide_input_in_errors=True,
    )

    def to_json_dict(self) -> dict[str, Any]:
        """The value as it is written to a file or a CRD: camelCase, absent keys left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class ConfigError(ValueError):
    """A configuration that cannot be used. `str()` is one line: key, value, what is allowed."""

    def __init__(self, key: str, value: object, allowed: str, says: str = "") -> None:
        """`says`: text that replaces the value and what is allowed."""
        self.key = key
        self.value = value
        self.allowed = allowed
        says = says or f"{shown_json(value)} is not allowed; allowed: {allowed}"
        super().__init__(f"{key}: {says}")

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        """All errors of the configuration; this one comes first."""
        return (self,)


class ContradictionsError(ConfigError):
    """Several errors at once. The key is the first error's; `str()` names all errors in one
    line."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        first = errors[0]
        super().__init__(first.key, first.value, first.allowed)
        self.args = ("; ".join(map(str, errors)),)
        self._errors = tuple(errors)

    @property
    def errors(self) -> tuple[ConfigError, ...]:
        return self._errors


def config_error_from(error: ValidationError, kind: Model) -> ConfigError:
    """All findings about a `kind`, each with key, value and what is allowed, as one line."""
    errors = [
        ConfigError(
            path_of(finding["loc"]) or "(root)",
            finding["input"],
            allowed_of(kind, finding),
            text_of(kind, finding),
        )
        for finding in findings_of(error)
    ]
    return errors[0] if len(errors) == 1 else ContradictionsError(errors)


def refuse_repeated_keys(text: str | bytes) -> None:
    """Raises ConfigError for JSON in which an object has a key twice."""
    if repeated := repeated_key(text):
        raise ConfigError(shown(repeated.key), None, "once", AGAIN)


AGAIN: Final = "is given again; allowed: once"


class RepeatedKey(NamedTuple):
    """A key that occurs twice in an object."""

    key: str
    outermost: bool
    """Whether the key is in the outermost object."""


def repeated_key(text: str | bytes) -> RepeatedKey | None:
    """A repeated key anywhere in valid JSON `text`; keys of inner objects are found first."""
    repeated: list[str] = []
    seen_in_last = 0

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal seen_in_last
        seen_in_last, keys = len(repeated), set[str]()
        for key, _ in pairs:
            if key in keys:
                repeated.append(key)
                return
            keys.add(key)

    json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str)
    # The decoder finishes the outermost object last, so its keys were looked at last.
    return RepeatedKey(repeated[0], seen_in_last == 0) if repeated else None
