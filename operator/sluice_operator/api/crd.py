"""The two CustomResourceDefinitions, built from the API types.

Holds what pydantic cannot say: names, printer columns, subresources and the default status.
"""

from __future__ import annotations

from typing import Any, Final

from sluice_contract.cluster import labels

from sluice_operator.api.base import ApiModel
from sluice_operator.api.conditions import PROGRESSING, READY, UPDATED
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.schema import Schema, structural_schema
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


def _column(name: str, path: str, kind: str = "string", *, wide: bool = False) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, "priority": 1 if wide else 0}


def _condition(kind: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{kind}")].{field}'


_AGE = _column("Age", ".metadata.creationTimestamp", "date")

SERVICE_COLUMNS: Final = (
    _column("Ready", _condition(READY, "status")),
    _column("Updated", _condition(UPDATED, "status")),
    _column("Mode", ".spec.mode"),
    _column("M", ".status.pools.mixed.summary"),
    _column("P", ".status.pools.prefill.summary"),
    _column("D", ".status.pools.decode.summary"),
    _column("URL", ".status.url"),
    _column("Reason", _condition(UPDATED, "reason")),
    _AGE,
    _column("Model", ".spec.model.uri", wide=True),
    _column("Progressing", _condition(PROGRESSING, "status"), wide=True),
    _column("Router", _condition("RouterReady", "status"), wide=True),
    _column("Message", _condition(UPDATED, "message"), wide=True),
)
POOL_COLUMNS: Final = (
    _column("Ready", _condition(READY, "status")),
    _column("Updated", _condition(UPDATED, "status")),
    _column("Role", ".spec.role"),
    _column("Engines", ".status.summary"),
    _column("Draining", ".status.draining", "integer"),
    _column("Reason", _condition(UPDATED, "reason")),
    _AGE,
    _column("Revision", ".status.revisions[0].name", wide=True),
    _column("Image", ".spec.image", wide=True),
    _column("Message", _condition(UPDATED, "message"), wide=True),
)


def inference_service_crd() -> Manifest:
    """The CRD of InferenceService."""
    schema = _object_schema(
        "A model, and the fleet of engines that serves it behind one URL.",
        InferenceServiceSpec,
        InferenceServiceStatus,
    )
    schema["x-kubernetes-validations"] = [
        {"rule": rule.cel, "message": f"{rule.field}: {rule.message}"} for rule in NAME_RULES
    ]
    # Of the one pool there is in mode Mixed; other modes have a rule that refuses that pool.
    scale = _scale(".spec.pools.mixed.replicas", ".status.pools.mixed")
    return _crd(INFERENCE_SERVICE, ["infsvc"], schema, SERVICE_COLUMNS, scale)


def engine_pool_crd() -> Manifest:
    """The CRD of EnginePool."""
    schema = _object_schema(
        "One pool of equal engines. The operator writes it; scale the InferenceService instead.",
        EnginePoolSpec,
        EnginePoolStatus,
    )
    return _crd(ENGINE_POOL, ["epool"], schema, POOL_COLUMNS, _scale(".spec.replicas", ".status"))


def _scale(replicas: str, status: str) -> dict[str, Any]:
    """The subresources of a kind that is scaled by its field `replicas`."""
    scale = {
        "specReplicasPath": replicas,
        "statusReplicasPath": f"{status}.replicas",
        "labelSelectorPath": f"{status}.selector",
    }
    return {"status": {}, "scale": scale}


def _object_schema(description: str, spec: type[ApiModel], status: type[ApiModel]) -> Schema:
    return {
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string", "description": f"Always {labels.API_VERSION}."},
            "kind": {"type": "string", "description": "The kind of this object."},
            "metadata": {"type": "object"},
            "spec": structural_schema(spec),
            "status": structural_schema(status) | {"default": DEFAULT_STATUS},
        },
    }


def _crd(
    kind: Kind,
    short_names: list[str],
    schema: Schema,
    columns: tuple[dict[str, Any], ...],
    subresources: dict[str, Any],
) -> Manifest:
    version = {
        "name": labels.VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "additionalPrinterColumns": list(columns),
        "subresources": subresources,
    }
    names = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
        "shortNames": short_names,
        "categories": ["all"],
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
