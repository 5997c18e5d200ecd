"""Errors of an InferenceService's spec for admission, and those among them that a change makes.

Pure. Only errors are reported that are certain without reading the cluster, its nodes or children.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from sluice_operator.api.canonical import canonical
from sluice_operator.api.engine import EngineSpec
from sluice_operator.api.findings import Finding, InvalidSpecError, parse
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.validate import with_stored_spec
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest, is_being_deleted
from sluice_operator.manifests.metadata import Owner, owner
from sluice_operator.service.observe import Images, ServiceObserved
from sluice_operator.service.resolve.model import delivery_of
from sluice_operator.service.resolve.resolved_service import resolve
from sluice_operator.service.revisions.revision import Revisions
from sluice_operator.validation.errors import Refusal, invalid

SpecErrors = Callable[[Manifest], Iterable[Refusal]]
"""Everything that is wrong with the spec of an object."""
_INDEX: Final = re.compile(r"\[\d+\]")
_VALUE_ENDS: Final = re.compile(r" (?:is|are) not |; allowed: ")


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


def new_findings(
    old: Manifest | None, new: Manifest, spec_errors: SpecErrors
) -> tuple[Finding, ...]:
    """Findings in `new` that `old` does not have; `old` is None where an object is created. Nothing
    where the spec stays, or the object is being deleted."""
    if is_being_deleted(new) or (old is not None and old.get("spec") == new.get("spec")):
        return ()
    findings = [refusal.finding for refusal in spec_errors(new)]
    if not findings or old is None:
        return tuple(findings)
    accepted = {_wrong_value(refusal.finding) for refusal in spec_errors(old)}
    return tuple(finding for finding in findings if _wrong_value(finding) not in accepted)


def _wrong_value(finding: Finding) -> tuple[str, Any]:
    """Field and refused value of a finding, which tell whether it is new. Not compared are the
    allowed values, whole objects and places in a list, because edits of other fields change
    them."""
    message = finding.message.partition("; got ")[2] or finding.message
    value = _VALUE_ENDS.split(message, maxsplit=1)[0]
    return _INDEX.sub("[]", finding.field), "" if value.startswith(("{", "[")) else value
