"""What the pools of one service must have alike, since they hand each other the KV cache.

Pure. It is resolved once per service: a pool that is resolved anew takes what nobody has set from
what is pinned of another pool, whatever this release would choose.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from pydantic.alias_generators import to_camel
from sluice_contract.http_errors import shown_json
from sluice_contract.labels import Role
from sluice_contract.sizing import Source

from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.pins import Pin, engine_inputs, pins_of
from sluice_operator.service.settings import Settings
from sluice_operator.validation.refusal import INVALID, Refusal

DEFAULTED: Final = ("dtype", "kv_cache_dtype", "page_size")
"""Those for which a release has defaults."""
SHARED: Final = (*DEFAULTED, "tensor_parallel_size")
"""The number of GPUs of an engine is the user's, and so is tensor parallelism."""


def shared_settings(observed: ServiceObserved, spec: InferenceServiceSpec) -> Settings:
    """What is pinned for the pools of a service of what nobody has set; what engines run with goes
    before what only a former revision has. Empty where nothing is pinned."""
    if len(spec.roles) == 1:
        return {}
    found = [
        pin for role in spec.roles for pin in pins_of(observed, role, engine_inputs(spec, role))
    ]
    first = next(iter(sorted(found, key=lambda pin: not pin.in_use)), None)
    settings = first.settings if first else {}
    return {
        name: settings[name]
        for name in DEFAULTED
        if name in settings and settings[name].source is not Source.USER
    }


def shared_pin(
    observed: ServiceObserved, spec: InferenceServiceSpec, role: Role, shared: Settings
) -> Pin | None:
    """What was decided for a pool with its inputs as they are, if it agrees with `shared`."""
    for pin in pins_of(observed, role, engine_inputs(spec, role)):
        if all(
            name not in pin.settings
            or pin.settings[name].source is Source.USER
            or pin.settings[name].value == entry.value
            for name, entry in shared.items()
        ):
            return pin
    return None


def unlike(spec: InferenceServiceSpec, found: Mapping[Role, Settings]) -> Iterator[Refusal]:
    """Refusals of what the pools of a service must have alike, and have not."""
    (first, settings), *others = found.items()
    for other, theirs in others:
        for name in SHARED:
            if settings[name].value != theirs[name].value:
                pools = (first, other) if _sets(spec, first, name) else (other, first)
                yield _unlike(spec, found, name, *pools)


def _unlike(
    spec: InferenceServiceSpec, found: Mapping[Role, Settings], name: str, pool: Role, beside: Role
) -> Refusal:
    place, key = "spec.engine", to_camel(name)
    if _sets(spec, pool, name):
        place = f"spec.pools.{pool}.engine"
    elif name == "tensor_parallel_size":
        place, key = f"spec.pools.{pool}.accelerator", "count"
    ours, theirs = (shown_json(found[role][name].value) for role in (pool, beside))
    text = f"{place}.{key}: {ours} in pool {pool} is not allowed beside {theirs} in pool {beside}"
    reason = "allowed: the same in both, which hand each other the KV cache"
    return Refusal(INVALID, f"{place}.{key}", f"{text}; {reason}")


def _sets(spec: InferenceServiceSpec, role: Role, name: str) -> bool:
    """Whether a user has set this for the engines of one pool."""
    own = spec.pool(role).engine
    return own is not None and getattr(own, name) is not None
