"""The base of all API types: a pydantic model, and rules across its fields.

Each rule is written twice, as CEL for the API server and as a function for the operator
(`findings.parse`). Both refuse a spec with the same words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)
from sluice_contract.base import ContractModel

from sluice_operator.api.quantities import is_at_most

CRD_DEFAULT: Final[dict[str, Any]] = {"x-crd-default": True}
"""Marks a field whose default the API server writes into the object."""


REFUSES_NULL: Final[dict[str, Any]] = {"x-refuses-null": True}
"""Schema extra of a field whose null does not count as left out: the operator refuses it."""


LEFT_OUT: Final = "x-left-out"


def left_out(text: object) -> dict[str, Any]:
    """Schema extra: what holds when the field is left out, where its type's default is None."""
    return {LEFT_OUT: str(text)}


@dataclass(frozen=True)
class Rule:
    """One constraint across fields. `field`: the path of the finding, below the model."""

    cel: str
    holds: Callable[[Any], bool]
    allowed: str
    field: str = ""
    further: Callable[[Any], str] | None = None
    """Text in parentheses that the operator adds, which CEL could not express; it may be empty."""

    @property
    def message(self) -> str:
        """Message that the API server shows with the field."""
        return f"allowed: {self.allowed}"

    def text(self, value: Any) -> str:
        """Allowed values in words, for `value`, which breaks the rule."""
        further = self.further(value) if self.further else ""
        return f"{self.allowed} ({further})" if further else self.allowed

    def to_crd(self) -> dict[str, str]:
        """The entry of x-kubernetes-validations. Its reason is the API server's default."""
        entry = {"rule": self.cel, "message": self.message}
        return entry | ({"fieldPath": f".{self.field}"} if self.field else {})


def add_rules(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Writes the rules of `model` into its schema."""
    rules = getattr(model, "RULES", ())
    if rules:
        schema["x-kubernetes-validations"] = [rule.to_crd() for rule in rules]


class ApiModel(ContractModel):
    """A part of a custom resource: frozen, camelCase outside, unknown keys refused."""

    model_config = ConfigDict(json_schema_extra=add_rules)

    RULES: ClassVar[tuple[Rule, ...]] = ()


LIST_MAP_KEYS: Final = "x-kubernetes-list-map-keys"


def list_map(*keys: str) -> dict[str, Any]:
    """Schema extra: a list whose entries are identified by `keys`."""
    return {"x-kubernetes-list-type": "map", LIST_MAP_KEYS: list(keys)}


ATOMIC: Final[dict[str, Any]] = {"x-kubernetes-list-type": "atomic"}

DnsLabel = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=63)
]
DnsName = Annotated[
    str,
    StringConstraints(pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$", min_length=1, max_length=253),
]
LABEL_KEY: Final = (
    "^([a-z0-9]([-.a-z0-9]*[a-z0-9])?/)?[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?$"
)
LabelKey = Annotated[str, StringConstraints(pattern=LABEL_KEY, min_length=1, max_length=317)]
LabelValue = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?)?$", max_length=63)
]
ResourceName = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?/[A-Za-z0-9]([-._A-Za-z0-9]*[A-Za-z0-9])?$",
        min_length=3,
        max_length=253,
    ),
]
"""An extended resource: what a device plugin offers, always with its domain."""
Image = Annotated[str, StringConstraints(pattern=r"^\S+$", min_length=1, max_length=512)]
FilePath = Annotated[str, StringConstraints(pattern=r"^/[^:]*$", min_length=1, max_length=512)]
ShortText = Annotated[str, StringConstraints(max_length=4096)]

QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"


def _quantity(value: Any) -> int | str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and re.fullmatch(QUANTITY_PATTERN, value) and len(value) <= 32:
        return value
    if isinstance(value, str) and (unit := re.fullmatch(r"([0-9.]+)([kKMGTPE])i?[Bb]", value)):
        number, letter = unit.groups()
        decimal = "k" if letter in "kK" else letter
        raise ValueError(f"{number}{decimal} or {number}{letter.upper()}i, without B")
    raise ValueError("an amount such as 2, 500m or 4Gi")


Quantity = Annotated[
    int | str,
    PlainValidator(_quantity),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": QUANTITY_PATTERN,
            "minimum": 0,
            "maxLength": 32,
            "x-kubernetes-int-or-string": True,
        }
    ),
]
"""An amount such as 2, 500m or 4Gi."""


DECIMAL_PATTERN: Final = r"^[0-9]{1,3}(\.[0-9]{1,4})?$"
"""A share in percent, as text; `percent` checks its range."""


def percent(least: float, most: float) -> Callable[[Any], int | str]:
    """Checks a share in percent: a whole number, or a decimal one as text, since a custom resource
    has no floating point."""

    def check(value: Any) -> int | str:
        is_decimal = isinstance(value, str) and re.fullmatch(DECIMAL_PATTERN, value) is not None
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not (is_whole or is_decimal) or not least <= float(value) <= most:
            raise ValueError(_percent_allowed(least, most))
        checked: int | str = value
        return checked

    return check


def _percent_allowed(least: float, most: float) -> str:
    return f'{least:g} to {most:g}: a whole number, or a decimal one in quotes, as "{most - 0.5:g}"'


def percent_schema(least: float, most: float) -> dict[str, Any]:
    """Schema by which the API server checks what `percent` checks."""
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": DECIMAL_PATTERN,
        "maxLength": 8,
        "x-kubernetes-int-or-string": True,
        "x-kubernetes-validations": [
            {
                "rule": f"double(self) >= {least:.1f} && double(self) <= {most:.1f}",
                "message": f"allowed: {_percent_allowed(least, most)}",
            }
        ],
    }


class SecretKeyRef(ApiModel):
    """One key of a Secret in the same namespace. Mounted as a file, never read by the operator."""

    name: DnsName = Field(description="Name of the Secret.")
    key: str = Field(
        min_length=1,
        max_length=253,
        pattern=r"^[-._a-zA-Z0-9]+$",
        description="Key within the Secret.",
    )


class LocalRef(ApiModel):
    """The name of another object in the same namespace."""

    name: DnsName = Field(description="Name of the object.")


def _without_gpus(field: str) -> Rule:
    def holds(resources: Any) -> bool:
        return not any(name.endswith("/gpu") for name in getattr(resources, field) or ())

    return Rule(
        f"!has(self.{field}) || !self.{field}.exists(k, k.endsWith('/gpu'))",
        holds,
        "no GPUs, which are accelerator.count",
        field,
    )


def _above_limits(resources: Any) -> list[str]:
    """The names of what is requested beyond its limit."""
    requests, limits = resources.requests or {}, resources.limits or {}
    return [name for name, value in requests.items() if not is_at_most(value, limits.get(name))]


class Resources(ApiModel):
    """Compute resources of one container, as in any pod."""

    requests: dict[str, Quantity] | None = Field(
        default=None, max_length=16, description="What the scheduler sets aside, e.g. cpu: 500m."
    )
    limits: dict[str, Quantity] | None = Field(
        default=None,
        max_length=16,
        description="Most that the container may use; GPUs are accelerator.count.",
    )

    RULES: ClassVar = (
        _without_gpus("requests"),
        _without_gpus("limits"),
        Rule(
            "!has(self.requests) || !has(self.limits) || self.requests.all(k, "
            "!(k in self.limits) || !isQuantity(string(self.requests[k])) || "
            "!isQuantity(string(self.limits[k])) || quantity(string(self.requests[k]))"
            ".compareTo(quantity(string(self.limits[k]))) <= 0)",
            lambda resources: not _above_limits(resources),
            "at most the limits",
            "requests",
            lambda resources: ", ".join(
                f"{name}: {resources.limits[name]}" for name in _above_limits(resources)
            ),
        ),
    )
