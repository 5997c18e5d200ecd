"""One pool's engine settings: resolved, with their sources, and rendered as the engine's file.

What was resolved for a generation is kept in status and used again, so that neither a new node
nor another table in a new release of the operator changes the settings of a running fleet. The
default image is not a setting: a release that brings another one rolls out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError
from pydantic.alias_generators import to_camel, to_snake
from sluice_contract import ports
from sluice_contract.accelerators import Accelerator
from sluice_contract.config import (
    EngineConfig,
    EngineSettings,
    ModelRef,
    ServerSettings,
    SloTargets,
    render_engine_config,
)
from sluice_contract.labels import Role
from sluice_contract.sizing import (
    Resolved,
    Source,
    check_slo,
    resolve_settings,
    resolved_values,
)

from sluice_operator.api.engine import DRAIN_SECONDS, EngineSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.status import ResolvedValue
from sluice_operator.model_uri import model_source
from sluice_operator.observed import Manifest

LISTEN_ADDRESS: Final = "0.0.0.0"  # noqa: S104
"""One file serves all pods of a revision, so it cannot name a pod's own address."""

Settings = dict[str, Resolved]
"""By field name of `EngineSettings`."""


@dataclass(frozen=True)
class EngineFile:
    """The resolved settings of one pool and the file that says them to the engine."""

    settings: Settings
    text: str


def engine_file(
    spec: InferenceServiceSpec, role: Role, accelerator: Accelerator, pinned: Settings | None
) -> EngineFile:
    """Resolves and renders the settings of one pool.

    Raises:
        ConfigError: two resolved values contradict each other.
    """
    source = model_source(spec.model)
    settings = pool_settings(spec, accelerator, pinned)
    values: dict[str, Any] = resolved_values(settings)
    config = EngineConfig(
        **values,
        slo=slo_targets(spec),
        model=ModelRef(uri=source.engine_uri, name=source.served_name),
        role=role,
        server=ServerSettings(
            host=LISTEN_ADDRESS, port=ports.ENGINE_HTTP, drain_seconds=drain_seconds(spec)
        ),
    )
    return EngineFile(settings, render_engine_config(config))


def pool_settings(
    spec: InferenceServiceSpec, accelerator: Accelerator, pinned: Settings | None
) -> Settings:
    """The settings of one pool, with their sources.

    Raises:
        ConfigError: two resolved values contradict each other.
    """
    slo = slo_targets(spec)
    if pinned is None:
        return resolve_settings(spec.engine or EngineSpec(), accelerator, slo)
    check_slo(slo, resolved_values(pinned))
    return pinned


def slo_targets(spec: InferenceServiceSpec) -> SloTargets | None:
    """The part of the promise that each engine keeps by itself."""
    if spec.slo is None or spec.slo.itl_milliseconds is None:
        return None
    return SloTargets(itl_milliseconds=spec.slo.itl_milliseconds, percentile=spec.slo.percentile)


def drain_seconds(spec: InferenceServiceSpec) -> int:
    """How long streams may finish after SIGTERM."""
    given = spec.engine.drain_seconds if spec.engine else None
    return DRAIN_SECONDS if given is None else given


def pinned_settings(service: Manifest, role: Role) -> Settings | None:
    """What status says was resolved for the present generation when that was carried out; None
    when it says nothing."""
    status = service.get("status") or {}
    if status.get("appliedGeneration") != service["metadata"].get("generation", 0):
        return None
    shown = (status.get("resolved") or {}).get(role.value)
    try:
        return _from_status(shown) if shown else None
    except ValidationError:
        return None


def settings_status(settings: Settings) -> Manifest:
    """The form in which settings are shown in status."""
    return {
        to_camel(name): ResolvedValue(
            value=entry.value, source=entry.source.value, **{"from": entry.origin}
        ).to_json_dict()
        for name, entry in sorted(settings.items())
    }


def _from_status(shown: Mapping[str, Any]) -> Settings:
    found = {to_snake(key): _resolved(ResolvedValue.model_validate(v)) for key, v in shown.items()}
    EngineSettings.model_validate({name: entry.value for name, entry in found.items()})
    return found


def _resolved(shown: ResolvedValue) -> Resolved:
    return Resolved(value=shown.value, source=Source(shown.source), origin=shown.from_)
