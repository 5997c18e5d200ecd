"""Makes a translation acceptable to `sluice plan`. Settings that plan would refuse are left out
with a note if engines work without them, else reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from sluice_operator.api.findings import Finding, InvalidSpecError
from sluice_operator.api.model_uri import BUCKETS, FETCHED, scheme_of
from sluice_operator.api.service import MAX_NAME
from sluice_operator.cli.image_options import DEFAULT_IMAGES
from sluice_operator.cli.preview import preview
from sluice_operator.cli.translate.translate import Translation
from sluice_operator.kube.kinds import INFERENCE_SERVICE

OPTIONAL: Final = (
    "engine.speculation",
    "engine.hostCache",
    "engine.kvTransfer",
    "engine.cudaGraphMaxBatch",
    "engine.attentionBackend",
    "engine.schedulingPolicy",
    "model.revision",
)
"""Settings without which answers are the same, in the order in which they are left out."""
CACHE_SIZE: Final = "200Gi"
CACHE: Final = "a guess: it holds model, drafts and adapters that are downloaded"
_FIELD: Final = re.compile(r"spec\.(?:prefill\.)?((?:engine|model)\.\w+)")


def document(translation: Translation) -> dict[str, Any]:
    """The InferenceService, named after its model."""
    model = translation.spec.get("model", {})
    model_name = (model.get("name") or model.get("uri") or "").rstrip("/").rpartition("/")[2]
    name = re.sub(r"[^a-z0-9]+", "-", model_name.lower()).lstrip("-0123456789")
    return {
        "apiVersion": INFERENCE_SERVICE.api_version,
        "kind": INFERENCE_SERVICE.kind,
        "metadata": {"name": name[:MAX_NAME].rstrip("-") or "model"},
        "spec": translation.spec,
    }


def make_acceptable(translation: Translation) -> tuple[Finding, ...]:
    """Leaves out settings that plan would refuse and engines can do without; returns what plan
    still refuses."""
    if "uri" not in translation.spec.get("model", {}):
        return (Finding("model.uri", "no flag names the model"),)
    spec = translation.spec
    has_adapters = "adapters" in spec["model"]
    if cached := _downloads(spec):
        translation.put("model.cache.size", CACHE_SIZE, CACHE)
        if not has_adapters and scheme_of(spec["model"]["uri"]) not in FETCHED:
            translation.put("model.adapters", [], "without a list this model may have no cache")
    if "prefill" not in spec and "kvTransfer" in spec.get("engine", {}):
        translation.drop("engine.kvTransfer", "only where prompts have a pool of their own")
    while findings := _findings(document(translation)):
        messages = {
            match[1]: finding.message
            for finding in findings
            if (match := _FIELD.match(finding.field))
        }
        path = next((path for path in OPTIONAL if path in messages), None)
        if path is None:
            break
        translation.drop(path, messages[path])
    if _downloads(spec):
        translation.notes.append(f"model.cache.size: {CACHE_SIZE} is {CACHE}")
    elif cached:
        del spec["model"]["cache"]
        if not has_adapters:
            spec["model"].pop("adapters", None)
    return findings


def _findings(service: dict[str, Any]) -> tuple[Finding, ...]:
    """Findings of `sluice plan` against the service."""
    try:
        refusal = preview(service, DEFAULT_IMAGES).plan.refusal
    except InvalidSpecError as error:
        return tuple(error.findings)
    if refusal is None:
        return ()
    return tuple(part.finding for part in refusal.parts or (refusal,))


def _downloads(spec: Mapping[str, Any]) -> bool:
    """Whether something is downloaded that needs a volume: a bucket's model, or a hub's draft or
    adapter."""
    model, speculation = spec["model"], spec.get("engine", {}).get("speculation", {})
    uris = [adapter["uri"] for adapter in model.get("adapters", ())]
    uris.append(speculation.get("draft", {}).get("uri", ""))
    return scheme_of(model["uri"]) in BUCKETS or any(uri.startswith("hf://") for uri in uris)
