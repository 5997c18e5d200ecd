"""One spelling for specs of equal meaning: the spelling that is hashed, compared, and made into
pods.

Pure. Each amount has one spelling. Empty maps, lists and sections are left out, and so are values
that hold anyway.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from sluice_contract.config.host_cache import HostCacheDisk, HostCacheSettings

from sluice_operator.api.base import LEFT_OUT, Resources
from sluice_operator.api.engine import CacheSpec, EngineSpec, ModelSpec
from sluice_operator.api.environment import ClaimVolume, EmptyDirVolume, EnvVar, VolumeMount
from sluice_operator.api.pools import AcceleratorSpec, PrefillSpec
from sluice_operator.api.quantities import spelling
from sluice_operator.api.router import RouterAuth, RouterSpec
from sluice_operator.api.scaling import (
    AutoscalingTarget,
    MetricsSpec,
    RolloutSpec,
    Slo,
    TracingSpec,
)
from sluice_operator.api.scheduling import Affinity, NodeAffinity, PodAffinity, Toleration
from sluice_operator.api.template import PodTemplate, RouterAffinity, RouterTemplate

SECTIONS: Final = (
    Affinity, AutoscalingTarget, EngineSpec, MetricsSpec, NodeAffinity, PodAffinity, PodTemplate,
    Resources, RolloutSpec, RouterAffinity, RouterSpec, RouterTemplate,
)  # fmt: skip
"""Types whose empty object says nothing. An empty object of another type is a choice, as `emptyDir:
{}`."""
_COUNTS_EMPTY: Final = {
    ModelSpec: ("adapters",),
    RouterAuth: ("tenants",),
    PrefillSpec: ("accelerator", "resources", "template"),
    RouterTemplate: ("image_pull_secrets", "tolerations"),
}
"""Fields in which an empty value inherits nothing, unlike a value that is left out."""
_LEFT_OUT: Final[dict[type[BaseModel], dict[str, Any]]] = {
    ClaimVolume: {"read_only": False},
    EmptyDirVolume: {"medium": ""},
    EnvVar: {"value": ""},
    Toleration: {"operator": "Equal", "value": ""},
    VolumeMount: {"read_only": False, "sub_path": ""},
}
"""Values that hold in a pod when they are left out."""
_AMOUNTS: Final[dict[type[BaseModel], tuple[str, ...]]] = {
    CacheSpec: ("size",),
    EmptyDirVolume: ("size_limit",),
    HostCacheSettings: ("memory",),
    HostCacheDisk: ("size",),
    Resources: ("requests", "limits"),
}
"""Fields that are quantities, or maps of quantities."""
_PERCENTAGES: Final = {Slo: "percentile", TracingSpec: "sample_percent"}

ModelT = TypeVar("ModelT", bound=BaseModel)


def canonical(part: ModelT) -> ModelT:
    """`part` and everything below it, in the spelling that all equal parts have."""
    amounts = _AMOUNTS.get(type(part), ())
    kept, left_out = _kept(part), _LEFT_OUT.get(type(part), {})
    changes = {}
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        written = _spelled(value) if name in amounts else _canonical(value)
        if _PERCENTAGES.get(type(part)) == name:
            written = _percentage(value)
        if name not in kept and (_says_nothing(written, field) or written == left_out.get(name)):
            written = None
        if written is not value:
            changes[name] = written
    return part.model_copy(update=changes) if changes else part


def _canonical(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return canonical(value)
    if isinstance(value, list):
        entries = [_canonical(entry) for entry in value]
        is_same = all(entry is before for entry, before in zip(entries, value, strict=True))
        return value if is_same else entries
    return value


def _kept(part: BaseModel) -> tuple[str, ...]:
    """The fields of `part` that are never left out."""
    if isinstance(part, AcceleratorSpec) and part.claim_template is not None:
        return ("count",)  # a claim's devices are always counted
    if isinstance(part, EngineSpec):
        return ("drain_seconds", "startup_seconds")  # another release may have other defaults
    return _COUNTS_EMPTY.get(type(part), ())


def _spelled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: spelling(amount) for key, amount in value.items()}
    return value if value is None else spelling(value)


def _percentage(value: int | str) -> int | str:
    """A share in percent, as a whole number if it is one."""
    exact = Decimal(value)
    return int(exact) if exact == int(exact) else f"{exact.normalize():f}"


def _says_nothing(value: Any, field: FieldInfo) -> bool:
    """Whether an optional field has a value that means the same as leaving it out."""
    if value is None or field.is_required() or field.default is not None:
        return False
    extra = field.json_schema_extra
    if isinstance(extra, dict) and extra.get(LEFT_OUT) == str(value):
        return True
    return value in ({}, []) or (isinstance(value, SECTIONS) and value == type(value)())
