"""What of a service's adapters is refused, beside what the API server refuses. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from sluice_contract.http_errors import shown_json

from sluice_operator.api.adapters import MAX_CLAIMS
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.validation.refusal import INVALID, Refusal


def adapter_contradictions(spec: InferenceServiceSpec) -> Iterator[Refusal]:
    """Names that are the model's, and more claims than a pod mounts."""
    field, adapters = "spec.model.adapters", spec.model.adapters or ()
    for index, adapter in enumerate(adapters):
        if adapter.name in spec.model.served_names:
            path = f"{field}[{index}].name"
            words = f"{shown_json(adapter.name)} is not allowed; allowed: none of the model's names"
            yield Refusal(INVALID, path, f"{path}: {words}")
    claims = {adapter.claim for adapter in adapters} - {None}
    if len(claims) > MAX_CLAIMS:
        words = f"{len(claims)} claims are not allowed; allowed: at most {MAX_CLAIMS}"
        yield Refusal(INVALID, field, f"{field}: {words}")
