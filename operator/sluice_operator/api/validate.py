"""Checks a whole document, as the API server would.

Knows no cluster: admission, quotas and whether references exist are not checked.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from sluice_contract.labels import API_VERSION

from sluice_operator.api.base import ApiModel, LabelValue
from sluice_operator.api.findings import parse
from sluice_operator.api.service import NAME_RULES, InferenceServiceSpec
from sluice_operator.api.stored import as_stored
from sluice_operator.observed import INFERENCE_SERVICE


def _only(allowed: str) -> AfterValidator:
    def check(value: str) -> str:
        if value != allowed:
            raise ValueError(allowed)
        return value

    return AfterValidator(check)


def _fit_name(name: str) -> str:
    for rule in NAME_RULES:
        if not rule.holds(name):
            raise ValueError(rule.allowed)
    return name


class ObjectMeta(ApiModel):
    """The part of metadata that a person may write; the rest is for the API server to read."""

    name: Annotated[str, AfterValidator(_fit_name)]
    namespace: str | None = None
    labels: dict[str, LabelValue] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    creation_timestamp: Any = None
    deletion_grace_period_seconds: Any = None
    deletion_timestamp: Any = None
    generate_name: Any = None
    generation: Any = None
    managed_fields: Any = None
    owner_references: Any = None
    resource_version: Any = None
    self_link: Any = None
    uid: Any = None


class ServiceDocument(ApiModel):
    """An InferenceService as a person writes it into a file."""

    api_version: Annotated[str, _only(API_VERSION)]
    kind: Annotated[str, _only(INFERENCE_SERVICE.kind)]
    metadata: ObjectMeta
    spec: InferenceServiceSpec
    status: Any = Field(default=None, description="Left unread, as the API server does.")


def parse_service(document: Any) -> ServiceDocument:
    """The InferenceService in a document.

    Raises:
        InvalidSpecError: with every finding.
    """
    return parse(ServiceDocument, as_stored(document, ServiceDocument), "")
