"""The adapters of a service: the ConfigMap that its engines follow, and the folders of adapters and
a draft model.

The ConfigMap keeps its name and changes while pods run, so adapters come and go without a restart.
Its folder, and the claims with adapters, are part of a revision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sluice_contract.config.adapters import AdapterRef, adapters_digest, render_adapters_file

from sluice_operator.api.adapters import CLAIMS_MOUNT, FILE_MOUNT
from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.environment import ADAPTERS_VOLUME
from sluice_operator.api.model_uri import CLAIM_MOUNT, adapter_claims, claim_of_model
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.kube.kinds import CONFIG_MAP, Manifest
from sluice_operator.manifests.metadata import ENGINE, Owner, stamped

ADAPTERS: Final = "adapters"
FILE: Final = f"{ADAPTERS}.json"
ADAPTERS_FILE: Final = f"{FILE_MOUNT}/{FILE}"


def adapters_name(service: str) -> str:
    """Name of the ConfigMap with a service's adapters."""
    return f"{service}-{ADAPTERS}"


def adapters_text(model: ModelSpec) -> str:
    """Text of the file that engines follow: all adapters except a hub's that are not downloaded
    yet."""
    claim = claim_of_model(model)
    return render_adapters_file(
        [
            AdapterRef(name=adapter.name, uri=adapter.engine_uri(claim, CLAIM_MOUNT))
            for adapter in model.adapters or ()
            if not adapter.is_fetched
        ]
    )


def adapters_config_maps(owner: Owner, model: ModelSpec) -> tuple[Manifest, ...]:
    """The ConfigMap with the file; none for a service without adapters."""
    if model.adapters is None:
        return ()
    head = owner.child(CONFIG_MAP, adapters_name(owner.service), ENGINE)
    return (stamped(head | {"data": {FILE: adapters_text(model)}}),)


def adapter_fields(service: str, model: ModelSpec, draft_claim: str | None) -> Manifest:
    """Fields of an EnginePool's spec: what its engines follow and mount. `draft_claim`: claim with
    the draft model, if the model is on another claim."""
    claims = {draft_claim} if draft_claim else set()
    if model.adapters is None:
        return {"adapter_claims": sorted(claims) or None}
    return {
        "adapters_ref": {"name": adapters_name(service)},
        "adapters_digest": adapters_digest(adapters_text(model).encode()),
        "adapter_claims": sorted(claims.union(adapter_claims(model))) or None,
    }


def adapter_volumes(spec: EnginePoolSpec) -> list[Manifest]:
    """The folder of the file, and the claims."""
    claims = {_volume(number): claim for number, claim in _numbered(spec)}
    volumes: list[Manifest] = [
        {"name": name, "persistentVolumeClaim": {"claimName": claim}}
        for name, claim in claims.items()
    ]
    if spec.adapters_ref is None:
        return volumes
    return [{"name": ADAPTERS_VOLUME, "configMap": {"name": spec.adapters_ref.name}}, *volumes]


def adapter_mounts(spec: EnginePoolSpec) -> list[Manifest]:
    """Read-only mounts of the folder and the claims."""
    folders = {} if spec.adapters_ref is None else {ADAPTERS_VOLUME: FILE_MOUNT}
    folders |= {_volume(number): f"{CLAIMS_MOUNT}/{claim}" for number, claim in _numbered(spec)}
    return [
        {"name": name, "mountPath": folder, "readOnly": True} for name, folder in folders.items()
    ]


def _numbered(spec: EnginePoolSpec) -> Iterable[tuple[int, str]]:
    return enumerate(spec.adapter_claims or ())


def _volume(number: int) -> str:
    """The name of a claim's volume, by number: a claim's name may be too long for it."""
    return f"{ADAPTERS_VOLUME}-{number}"
