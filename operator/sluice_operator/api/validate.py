"""Checks a whole document, as the API server would.

Admission, quotas and whether references exist are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field
from sluice_contract.cluster.labels import API_VERSION
from sluice_contract.error_text import UNTOLD
from sluice_contract.log_lines import shown_json

from sluice_operator.api.base import LABEL_KEY, ApiModel, DnsLabel, LabelValue
from sluice_operator.api.findings import Finding, InvalidSpecError, parse
from sluice_operator.api.service import NAME_RULES, InferenceServiceSpec
from sluice_operator.api.stored import as_stored, without_nulls
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest

ServersOwn = Annotated[Any, Field(json_schema_extra=UNTOLD)]
KSERVE: Final = "serving.kserve.io/"
MAX_KEY_PREFIX: Final = 253
MAX_KEY_NAME: Final = 63


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


def _fit_keys(values: dict[str, str]) -> dict[str, str]:
    wrong = [key for key in values if not _is_key(key)]
    if wrong:
        keys = ", ".join(map(shown_json, wrong))
        raise ValueError(f"keys like example.com/name or name, unlike {keys}")
    return values


def _is_key(key: str) -> bool:
    prefix, _, name = key.rpartition("/")
    fits = len(prefix) <= MAX_KEY_PREFIX and len(name) <= MAX_KEY_NAME
    return fits and re.fullmatch(LABEL_KEY, key) is not None


def _fit_annotations(values: dict[str, str]) -> dict[str, str]:
    """Annotations with valid keys. The API server checks the keys in lower case."""
    _fit_keys({key.lower(): value for key, value in values.items()})
    return values


class ObjectMeta(ApiModel):
    """The part of metadata that a person may write; the rest is for the API server to read."""

    name: Annotated[str, AfterValidator(_fit_name)]
    namespace: DnsLabel | None = None
    labels: Annotated[dict[str, LabelValue], AfterValidator(_fit_keys)] | None = None
    annotations: Annotated[dict[str, str], AfterValidator(_fit_annotations)] | None = None
    finalizers: list[str] | None = None
    creation_timestamp: ServersOwn = None
    deletion_grace_period_seconds: ServersOwn = None
    deletion_timestamp: ServersOwn = None
    generate_name: ServersOwn = None
    generation: ServersOwn = None
    managed_fields: ServersOwn = None
    owner_references: ServersOwn = None
    resource_version: ServersOwn = None
    self_link: ServersOwn = None
    uid: ServersOwn = None


class ServiceDocument(ApiModel):
    """An InferenceService as a person writes it into a file."""

    api_version: Annotated[str, _only(API_VERSION)]
    kind: Annotated[str, _only(INFERENCE_SERVICE.kind)]
    metadata: ObjectMeta
    spec: InferenceServiceSpec
    status: Any = Field(default=None, description="Left unread, as the API server does.")


def with_stored_spec(service: Manifest) -> Manifest:
    """A live InferenceService whose spec has no null that counts as left out."""
    spec = without_nulls(InferenceServiceSpec, service.get("spec") or {})
    return service | {"spec": spec}


def parse_service(document: Any) -> ServiceDocument:
    """The InferenceService in a document.

    Raises:
        InvalidSpecError: with every finding; of KServe's kind of the same name, with that alone.
    """
    version = document.get("apiVersion") if isinstance(document, Mapping) else None
    if isinstance(version, str) and version.startswith(KSERVE):
        text = f"{shown_json(version)} is KServe's InferenceService; Sluice's is {API_VERSION}, "
        text += "whose spec begins with model: {uri: hf://org/name}"
        raise InvalidSpecError((Finding("apiVersion", text),))
    return parse(ServiceDocument, as_stored(document, ServiceDocument), "")
