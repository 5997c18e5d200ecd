"""What this version of the operator does not support: one table.

A row is deleted when the feature is implemented. Engine settings have their own table, which the
engine shares: `sluice_contract.config.supported`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sluice_contract.config.supported import unsupported
from sluice_contract.http_errors import shown_json

from sluice_operator.api.engine import EngineSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.validation.refusal import Refusal

NOT_IMPLEMENTED: Final = "NotImplemented"


@dataclass(frozen=True)
class Unsupported:
    """A field, when it is refused, and what is allowed instead."""

    field: str
    refuses: Callable[[InferenceServiceSpec], bool]
    value: Callable[[InferenceServiceSpec], object]
    allowed: str


ROWS: Final = (
    Unsupported(
        "spec.slo",
        lambda s: (
            s.slo is not None and s.slo.ttft_milliseconds is None and s.slo.itl_milliseconds is None
        ),
        lambda _: "a value",
        "a promise: ttftMilliseconds, itlMilliseconds or both",
    ),
)


def refusals(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """A refusal for everything the spec asks for and this version does not have."""
    for row in ROWS:
        if row.refuses(spec):
            yield _refusal(row.field, row.value(spec), row.allowed)
    yield from _pool_refusals(spec)
    on_cpus = any(spec.pool(role).accelerator is None for role in spec.roles)
    for error in unsupported(spec.engine or EngineSpec(), on_cpus=on_cpus):
        yield Refusal(NOT_IMPLEMENTED, f"spec.engine.{error.key}", f"spec.engine.{error}")


def _pool_refusals(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    for role in spec.roles:
        pool, path = spec.pool(role), f"spec.pools.{role}"
        for error in unsupported(pool.engine or EngineSpec(), on_cpus=pool.accelerator is None):
            yield Refusal(NOT_IMPLEMENTED, f"{path}.engine.{error.key}", f"{path}.engine.{error}")


def _refusal(field: str, value: object, allowed: str) -> Refusal:
    shown = shown_json(value) if value != "a value" else "this field"
    return Refusal(
        NOT_IMPLEMENTED, field, f"{field}: {shown} is not implemented yet; allowed: {allowed}"
    )
