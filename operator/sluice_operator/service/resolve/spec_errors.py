"""Errors of an InferenceService's spec that are certain without reading the cluster: for admission.
Pure. Errors that depend on nodes or children are not reported."""

from __future__ import annotations

from functools import partial

from sluice_operator.api.canonical import canonical
from sluice_operator.api.engine import EngineSpec
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.validate import with_stored_spec
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.manifests.metadata import Owner, owner
from sluice_operator.service.observe import Images, ServiceObserved
from sluice_operator.service.resolve.model import delivery_of
from sluice_operator.service.resolve.resolved_service import resolve
from sluice_operator.service.revisions.revision import Revisions
from sluice_operator.validation.errors import Refusal, invalid


def spec_errors(images: Images, service: Manifest) -> tuple[Refusal, ...]:
    """The errors that the plan would refuse the spec for; `images`: the operator's own."""
    service, metadata = with_stored_spec(service), service["metadata"]
    observed = ServiceObserved({"metadata": metadata, "spec": service["spec"]}, images)
    top = owner(INFERENCE_SERVICE, service, metadata["name"])
    try:
        spec = canonical(parse(InferenceServiceSpec, service["spec"], "spec"))
    except InvalidSpecError as error:
        return invalid(error, partial(_certain, observed, top))
    delivery = delivery_of(observed, top, spec, Revisions())
    refused = (delivery.refusal,) if delivery.refusal else ()
    return (*_certain(observed, top, spec), *refused)


def _certain(
    observed: ServiceObserved, top: Owner, spec: InferenceServiceSpec
) -> tuple[Refusal, ...]:
    """Errors that hold on every accelerator. The default chunk size depends on the nodes, so it is
    not checked here."""
    anywhere = resolve(observed, top, _without_chunks(spec)).refusals
    return tuple(error for error in resolve(observed, top, spec).refusals if error in anywhere)


def _without_chunks(spec: InferenceServiceSpec) -> InferenceServiceSpec:
    engine = spec.engine or EngineSpec()
    has_accelerator = any(spec.pool(role).accelerator for role in spec.roles)
    if not has_accelerator or engine.chunk_size is not None:
        return spec
    return spec.model_copy(update={"engine": engine.model_copy(update={"chunk_size": -1})})
