"""EnginePools, from an InferenceService's spec."""

from __future__ import annotations

from sluice_contract.labels import Role

from sluice_operator.api.base import LocalRef
from sluice_operator.api.engine import STARTUP_SECONDS, EngineSpec
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.manifests.metadata import ENGINE, Owner, stamped
from sluice_operator.model_uri import model_source
from sluice_operator.observed import ENGINE_POOL, Manifest
from sluice_operator.owned import with_applied_fields
from sluice_operator.service.settings import drain_seconds


def pool_spec(
    service: str, spec: InferenceServiceSpec, role: Role, image: str, config_map: str
) -> EnginePoolSpec:
    """What the pool of `role` should be."""
    engine, pool = spec.engine or EngineSpec(), spec.pool(role)
    return EnginePoolSpec(
        service_name=service,
        role=role,
        replicas=pool.replicas,
        image=engine.image or image,
        config_ref=LocalRef(name=config_map),
        model_claim=model_source(spec.model).claim,
        drain_seconds=drain_seconds(spec),
        startup_seconds=engine.startup_seconds or STARTUP_SECONDS,
        accelerator=pool.accelerator,
        resources=pool.resources,
        template=pool.template,
    )


def engine_pool(owner: Owner, spec: EnginePoolSpec) -> Manifest:
    """The EnginePool object. It says which fields it was applied with, so that the pool's own plan
    can tell whether it still is what the InferenceService asks for."""
    head = owner.child(ENGINE_POOL, f"{owner.service}-{spec.role}", ENGINE, spec.role)
    return with_applied_fields(stamped(head | {"spec": spec.to_json_dict()}))
