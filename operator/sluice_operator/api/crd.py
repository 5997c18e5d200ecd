"""The two CustomResourceDefinitions, built from the API types.

Holds what pydantic cannot say: names, printer columns, subresources and the default status.
"""

from __future__ import annotations

from typing import Any, Final

from sluice_contract.cluster import labels

from sluice_operator.api.base import ApiModel
from sluice_operator.api.conditions import PROGRESSING, READY, UPDATED
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.schema import Schema, structural_schema, with_nullable_fields
from sluice_operator.api.service import NAME_RULES, InferenceServiceSpec
from sluice_operator.api.status import EnginePoolStatus, InferenceServiceStatus
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE, Kind, Manifest

DEFAULT_STATUS: Final[dict[str, Any]] = {
    "observedGeneration": -1,
    "conditions": [
        {
            "type": kind,
            "status": "Unknown",
            "reason": "Pending",
            "message": "The operator has not seen this object yet.",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }
        for kind in (READY, UPDATED)
    ],
}
"""What a new object reports until the operator has seen it."""


SCALE: Final = {
    "specReplicasPath": ".spec.replicas",
    "statusReplicasPath": ".status.replicas",
    "labelSelectorPath": ".status.selector",
}
"""The scale subresource of both kinds."""


def _column(
    name: str, path: str, describes: str, kind: str = "string", *, wide: bool = False
) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "jsonPath": path,
        "description": describes,
        "priority": 1 if wide else 0,
    }


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_AGE = _column("Age", ".metadata.creationTimestamp", "Time since it was made.", "date")
_READY = _column("Ready", _condition(READY, "status"), "Whether it answers.")
_UPDATED = _column(
    "Updated", _condition(UPDATED, "status"), "Whether all of it is what the spec asks for."
)
_REASON = _column("Reason", _condition(UPDATED, "reason"), "Why it is updated, or is not yet.")
_MESSAGE = _column("Message", _condition(UPDATED, "message"), "The reason in words.", wide=True)

SERVICE_COLUMNS: Final = (
    _column("Mode", ".status.mode", "Whether prompts have a pool of their own."),
    _READY,
    _UPDATED,
    _column("Engines", ".status.summary", "Engines that answer/that there should be, by pool."),
    _column("Model", ".spec.model.uri", "Where the weights are."),
    _REASON,
    _AGE,
    _column("URL", ".status.url", "Where the OpenAI API answers.", wide=True),
    _column("Progressing", _condition(PROGRESSING, "status"), "Whether it changes.", wide=True),
    _column("Router", _condition("RouterReady", "status"), "Whether a router answers.", wide=True),
    _MESSAGE,
)
POOL_COLUMNS: Final = (
    _column("Role", ".spec.role", "What its engines do."),
    _READY,
    _UPDATED,
    _column("Engines", ".status.summary", "Engines that answer/that there should be."),
    _column("Draining", ".status.drainingReplicas", "Engines that end.", "integer"),
    _REASON,
    _AGE,
    _column("Revision", ".status.revisions[0].name", "The current revision.", wide=True),
    _column("Image", ".spec.image", "Image of its engines.", wide=True),
    _MESSAGE,
)


def inference_service_crd() -> Manifest:
    """The CRD of InferenceService."""
    spec = with_nullable_fields(structural_schema(InferenceServiceSpec))
    # The API server reads the replicas of the scale subresource, and cannot read a null as a
    # number.
    del spec["properties"]["replicas"]["nullable"]
    schema = _object_schema(
        "A model, and the fleet of engines that serves it behind one URL.",
        spec,
        InferenceServiceStatus,
    )
    schema["x-kubernetes-validations"] = [
        {"rule": rule.cel, "message": f"{rule.field}: {rule.message}"} for rule in NAME_RULES
    ]
    crd = _crd(INFERENCE_SERVICE, ["infsvc"], ["all"], schema, SERVICE_COLUMNS)
    crd["spec"]["versions"][0]["selectableFields"] = [{"jsonPath": ".spec.model.uri"}]
    return crd


def engine_pool_crd() -> Manifest:
    """The CRD of EnginePool."""
    schema = _object_schema(
        "One pool of equal engines. The operator writes it; scale the InferenceService instead.",
        structural_schema(EnginePoolSpec),
        EnginePoolStatus,
    )
    return _crd(ENGINE_POOL, ["epool"], [], schema, POOL_COLUMNS)


def _object_schema(description: str, spec_schema: Schema, status: type[ApiModel]) -> Schema:
    return {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {labels.API_VERSION}."},
            "kind": {"type": "string", "description": "The kind of this object."},
            "metadata": {"type": "object"},
            "spec": spec_schema,
            "status": structural_schema(status) | {"default": DEFAULT_STATUS},
        },
    }


def _crd(
    kind: Kind,
    short_names: list[str],
    categories: list[str],
    schema: Schema,
    columns: tuple[dict[str, Any], ...],
) -> Manifest:
    version = {
        "name": labels.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": list(columns),
        "subresources": {"status": {}, "scale": SCALE},
    }
    names = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "shortNames": short_names,
        "categories": ["sluice", *categories],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{kind.plural}.{labels.GROUP}",
            "labels": {labels.NAME: "sluice", labels.PART_OF: labels.PART_OF_SLUICE},
        },
        "spec": {
            "group": labels.GROUP,
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }
