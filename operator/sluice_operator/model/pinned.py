"""A hub's model as status has it: whether the spec asks for it, and the spec with it. Pure."""

from __future__ import annotations

import re
from typing import Final

from pydantic import ValidationError
from sluice_contract.supported import ARCHITECTURES

from sluice_operator.api.engine import CacheSpec, ModelSpec
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.model_uri import HUB, scheme_of
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.status import ModelStatus
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.fetching import claim_name

DEFAULT_REVISION: Final = "main"
UNKNOWN_COMMIT: Final = "0" * 40


def is_fetched(model: ModelSpec) -> bool:
    """Whether a model is downloaded from a hub."""
    return scheme_of(model.uri) == HUB


def pin_of(service: Manifest, model: ModelSpec) -> ModelStatus | None:
    """What status says of the model of the spec; None where that was not resolved yet."""
    shown = (service.get("status") or {}).get("model")
    try:
        pin = ModelStatus.model_validate(shown) if shown else None
    except ValidationError:  # edited, or of another release
        return None
    if pin is None or (pin.uri, pin.revision, pin.refresh) != asked(model):
        return None
    return pin


def asked(model: ModelSpec) -> tuple[str, str, str | None]:
    """What a pin is for."""
    return model.uri, model.revision or DEFAULT_REVISION, model.refresh


def claim_of(service: str, model: ModelSpec) -> str | None:
    """The claim of the model's cache; None without one."""
    if model.cache is None:
        return None
    return model.cache.claim or claim_name(service)


def pinned(spec: InferenceServiceSpec, service: Manifest) -> InferenceServiceSpec:
    """`spec` with the commit for the revision and the name of the claim for the cache, so that what
    engines are made from depends on nothing else; as it is where nothing is resolved."""
    model = spec.model
    pin = pin_of(service, model) if is_fetched(model) else None
    if pin is None:
        return spec
    claim = claim_of(service["metadata"]["name"], model)
    update = {
        "revision": pin.commit,
        "refresh": None,
        "cache": CacheSpec(claim=claim) if claim else None,
    }
    return spec.model_copy(update={"model": model.model_copy(update=update)})


def spec_with_commit(service: Manifest) -> Manifest:
    """The spec of a service, which names the commit that its revision is: so it says the same when
    the branch has moved. As it is where that is not known."""
    spec: Manifest = service["spec"]
    try:
        model = parse(ModelSpec, spec.get("model") or {}, "spec.model")
    except InvalidSpecError:
        return spec
    pin = pin_of(service, model) if is_fetched(model) else None
    if pin is None:
        return spec
    named = {key: value for key, value in spec["model"].items() if key != "refresh"}
    return spec | {"model": named | {"revision": pin.commit}}


def assumed_pin(model: ModelSpec) -> ModelStatus:
    """Of a model that nobody has resolved: for previews."""
    uri, revision, refresh = asked(model)
    commit = revision if re.fullmatch("[0-9a-f]{40}", revision) else UNKNOWN_COMMIT
    return ModelStatus(
        uri=uri,
        revision=revision,
        refresh=refresh,
        commit=commit,
        bytes=0,
        architecture=ARCHITECTURES[0],
    )


def previewed(pin: ModelStatus, service: str, model: ModelSpec) -> Manifest:
    """The status of a model that is where engines look for it: for previews."""
    there = {"claim": claim_of(service, model), "claim_uid": None}
    return pin.model_copy(update=there).to_json_dict()
