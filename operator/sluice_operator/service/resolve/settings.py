"""One pool's engine settings: resolved, with their sources, and rendered as the engine's file.

Uses the tables and defaults of this release; decisions of earlier releases are in `revisions/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic.alias_generators import to_camel
from sluice_contract.cluster import ports
from sluice_contract.cluster.labels import Role
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.config.engine import (
    EngineConfig,
    ModelRef,
    SloTargets,
    render_engine_config,
)
from sluice_contract.config.host_cache import FOLDER
from sluice_contract.config.kv_transfer import KvBackend, KvTransfer
from sluice_contract.config.server import ServerSettings
from sluice_contract.config.sizing import (
    Resolved,
    Source,
    resolve_settings,
    resolved_values,
)
from sluice_contract.config.speculation import DraftRef, SpeculationSettings
from sluice_contract.config.tracing import Tracing

from sluice_operator.api.adapters import mounted_uri
from sluice_operator.api.model_uri import CLAIM_MOUNT, claim_of_model, model_source
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.manifests.adapters import ADAPTERS_FILE
from sluice_operator.manifests.handover import HANDOVER_KEY_FILE
from sluice_operator.service.revisions.settings import Settings

LISTEN_ADDRESS: Final = "0.0.0.0"  # noqa: S104
"""Address at which engines listen. All pods of a revision share one file, so it cannot name a pod's
own address."""

HANDOVER_BACKEND: Final = "kv_transfer_backend"


@dataclass(frozen=True)
class EngineFile:
    """The resolved settings of one pool and the file that says them to the engine."""

    settings: Settings
    text: str


def engine_file(
    spec: InferenceServiceSpec,
    role: Role,
    accelerator: Accelerator,
    settings: Settings,
    backend_in_use: KvBackend | None = None,
) -> EngineFile:
    """Renders the resolved settings of one pool; `backend_in_use`: what carries the KV cache
    between engines that are there."""
    source = model_source(spec.model)
    values: dict[str, Any] = resolved_values(settings)
    transfer = spec.kv_transfer(role)
    if transfer is not None:
        backend = _handover_backend(spec, role, transfer, backend_in_use)
        settings = settings | {HANDOVER_BACKEND: backend}
        # Without what only the operator reads.
        update = {"backend": backend.value, "resource_name": None}
        transfer = transfer.model_copy(update=update)
    config = EngineConfig(
        **values,
        slo=slo_targets(spec, role),
        accelerator=None if accelerator.is_cpu else accelerator,
        adapters_file=None if spec.model.adapters is None else ADAPTERS_FILE,
        model=ModelRef(uri=source.engine_uri, name=source.served_name, aliases=spec.model.aliases),
        role=role,
        kv_transfer=transfer,
        speculation=_speculation(spec, role),
        host_cache=(cache := spec.host_cache(role)),
        host_cache_folder=FOLDER if cache and cache.disk else None,
        handover_key_file=HANDOVER_KEY_FILE,
        tracing=Tracing(endpoint=spec.tracing.endpoint) if spec.tracing else None,
        server=ServerSettings(
            host=LISTEN_ADDRESS,
            port=ports.ENGINE_HTTP,
            metrics_port=ports.ENGINE_METRICS,
            metrics_compatibility=spec.metrics.compatibility if spec.metrics else None,
            drain_seconds=spec.drain_seconds(role),
            require_signature=True if spec.asks_for_keys else None,
        ),
    )
    return EngineFile(settings, render_engine_config(config))


def _speculation(spec: InferenceServiceSpec, role: Role) -> SpeculationSettings | None:
    """Speculation settings of a pool that decodes, with the path of its draft model."""
    speculation, draft = spec.speculation(role), spec.draft_uri(role)
    if speculation is None or draft is None:
        return speculation
    uri = mounted_uri(draft, claim_of_model(spec.model), CLAIM_MOUNT)
    return speculation.model_copy(update={"draft": DraftRef(uri=uri)})


def _handover_backend(
    spec: InferenceServiceSpec, role: Role, transfer: KvTransfer, in_use: KvBackend | None
) -> Resolved:
    """The backend of the KV hand-over. If the user sets none, running engines keep theirs."""
    if transfer.backend is not None:
        return Resolved(value=transfer.backend, source=Source.USER, origin="spec.engine")
    default = transfer.backend_or_default
    if in_use in (None, default) or transfer.protocol == "rdma":
        return Resolved(value=default, source=Source.GENERAL, origin="default")
    return Resolved(value=str(in_use), source=Source.GENERAL, origin="engines in use")


def pool_settings(
    spec: InferenceServiceSpec, role: Role, accelerator: Accelerator, shared: Settings
) -> Settings:
    """The settings of one pool, with their sources. `shared`: settings of the service's other
    pools, which hold where the user has set none.

    Raises:
        ConfigError: two resolved values contradict each other.
    """
    own_settings = spec.engine_of(role).model_copy(update={"host_cache": spec.host_cache(role)})
    taken = {name: entry for name, entry in shared.items() if getattr(own_settings, name) is None}
    with_shared = own_settings.model_copy(update=resolved_values(taken))
    resolved = resolve_settings(with_shared, accelerator, slo_targets(spec, role)) | taken
    for name, entry in resolved.items():
        if entry.source is Source.USER:
            origin = spec.engine_place(role, to_camel(name))
            resolved[name] = entry.model_copy(update={"origin": origin})
    return resolved


def slo_targets(spec: InferenceServiceSpec, role: Role) -> SloTargets | None:
    """The part of the SLO that each engine keeps by itself. Prefill engines have no ITL, so no
    chunk needs to be cut for it."""
    if spec.slo is None:
        return None
    itl = None if role is Role.PREFILL else spec.slo.itl_milliseconds
    ttft = spec.slo.ttft_milliseconds
    if itl is None and ttft is None:
        return None
    percentile = float(spec.slo.percentile)
    return SloTargets(ttft_milliseconds=ttft, itl_milliseconds=itl, percentile=percentile)
