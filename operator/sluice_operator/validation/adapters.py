"""What of a service's adapters is refused, beside what the API server refuses. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sluice_contract.http_errors import shown_json

from sluice_operator.api.adapters import CLAIMS_MOUNT, MAX_CLAIMS
from sluice_operator.api.model_uri import adapter_claims
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.validation.refusal import INVALID, Refusal

PLACE: Final = "spec.model.adapters"


def adapter_contradictions(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """Names that are the model's, more claims than a pod mounts, and mounts of others where those
    are."""
    if spec.model.adapters is None:
        return
    for index, adapter in enumerate(spec.model.adapters):
        if adapter.name in spec.model.served_names:
            path = f"{PLACE}[{index}].name"
            reason = (
                f"{shown_json(adapter.name)} is not allowed; allowed: none of the model's names"
            )
            yield Refusal(INVALID, path, f"{path}: {reason}")
    claims = {adapter.claim for adapter in spec.model.adapters} - {None}
    if len(claims) > MAX_CLAIMS:
        reason = f"{len(claims)} claims are not allowed; allowed: at most {MAX_CLAIMS}"
        yield Refusal(INVALID, PLACE, f"{PLACE}: {reason}")
    yield from _mounts(spec)


def _mounts(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """The API server refuses two mounts at one path."""
    ours = {f"{CLAIMS_MOUNT}/{claim}" for claim in adapter_claims(spec.model)}
    for role in spec.roles:
        template = spec.pool(role).template
        for index, mount in enumerate((template and template.volume_mounts) or ()):
            if mount.folder in ours:
                path = f"spec.pools.{role}.template.volumeMounts[{index}].mountPath"
                allowed = f"all but {', '.join(sorted(ours))}, where adapters are"
                reason = f"{shown_json(mount.mount_path)} is not allowed; allowed: {allowed}"
                yield Refusal(INVALID, path, f"{path}: {reason}")
