"""A hub's model and adapters as the status records them, and the spec pinned to these. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from pydantic import ValidationError
from sluice_contract.config.speculation import DraftRef
from sluice_contract.config.supported import ARCHITECTURES

from sluice_operator.api.adapters import DEFAULT_REVISION, AdapterSpec, HubDraft
from sluice_operator.api.engine import CacheSpec, EngineSpec, ModelSpec
from sluice_operator.api.findings import InvalidSpecError, parse
from sluice_operator.api.model_uri import FETCHED, HUB, scheme_of, snapshot_path
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.api.status import FetchedAdapter, ModelStatus
from sluice_operator.kube.kinds import PERSISTENT_VOLUME_CLAIM, Manifest, of_kind
from sluice_operator.manifests.fetching import claim_name

UNKNOWN_COMMIT: Final = "0" * 40


def is_fetched(model: ModelSpec) -> bool:
    """Whether a model is downloaded, from a hub or a bucket."""
    return scheme_of(model.uri) in FETCHED


def pin_of(service: Manifest, model: ModelSpec) -> ModelStatus | None:
    """Resolved model in the service's status; None where the spec's model is not resolved yet."""
    shown = (service.get("status") or {}).get("model")
    try:
        pin = ModelStatus.model_validate(shown) if shown else None
    except ValidationError:  # edited, or of another release
        return None
    if pin is None or (pin.uri, pin.revision, pin.refresh) != requested_version(model):
        return None
    return pin


def fetched_adapters(service: Manifest) -> dict[str, FetchedAdapter]:
    """Adapters from a hub that the service's status records, by name."""
    shown = (service.get("status") or {}).get("adapters") or ()
    adapters = []
    for entry in shown:
        try:
            adapters.append(FetchedAdapter.model_validate(entry))
        except ValidationError:  # edited, or of another release
            continue
    return {entry.name: entry for entry in adapters}


def uid_of_claim(children: Iterable[Manifest], claim: str) -> str | None:
    """The uid of a claim among the service's children; None if it is not the operator's."""
    claims = of_kind(tuple(children), PERSISTENT_VOLUME_CLAIM)
    all_metadata = (item["metadata"] for item in claims)
    return next((meta.get("uid") for meta in all_metadata if meta["name"] == claim), None)


def requested_version(model: ModelSpec) -> tuple[str, str, str | None]:
    """Model and version that a pin is for: URI, revision and refresh."""
    return model.uri, model.revision or DEFAULT_REVISION, model.refresh


def claim_of(service: str, model: ModelSpec) -> str | None:
    """The claim of the model's cache; None without one."""
    if model.cache is None:
        return None
    return model.cache.claim or claim_name(service)


def pinned(spec: InferenceServiceSpec, service: Manifest) -> InferenceServiceSpec:
    """`spec` with fixed versions: the commit for the revision, the claim for the cache, and
    adapters of a hub as folders of that claim. What engines are made from then depends on nothing
    else. Unchanged if the model is not resolved."""
    model = spec.model
    pin = pin_of(service, model) if is_fetched(model) else None
    if pin is None and is_fetched(model):
        return spec
    return pinned_at(spec, service, pin.commit if pin else None)


def pinned_at(
    spec: InferenceServiceSpec, service: Manifest, commit: str | None
) -> InferenceServiceSpec:
    """`spec` pinned to `commit`, whatever the status says about its model."""
    model = spec.model
    claim = claim_of(service["metadata"]["name"], model)
    adapters = fetched_adapters(service) if claim else {}
    update = {
        "revision": commit,
        "refresh": None,
        "token_secret_ref": model.token_secret_ref if is_fetched(model) else None,
        "cache": CacheSpec(claim=claim) if claim else None,
        "adapters": [_pinned(adapter, adapters) for adapter in model.adapters]
        if model.adapters is not None
        else None,
    }
    spec = _with_draft_at(spec, adapters)
    return spec.model_copy(update={"model": model.model_copy(update=update)})


def hub_draft(spec: InferenceServiceSpec) -> str | None:
    """The URI of the model that drafts, if it is still at a hub."""
    uris = (spec.draft_uri(role) or "" for role in spec.roles)
    return next((uri for uri in uris if scheme_of(uri) == HUB), None)


def with_draft(spec: InferenceServiceSpec) -> ModelSpec:
    """The model with a hub's draft model added to its adapters, because both are fetched alike."""
    uri = hub_draft(spec)
    if uri is None:
        return spec.model
    draft = HubDraft.model_construct(name=uri, uri=uri)
    return spec.model.model_copy(update={"adapters": [*(spec.model.adapters or ()), draft]})


def _with_draft_at(
    spec: InferenceServiceSpec, downloads: Mapping[str, FetchedAdapter]
) -> InferenceServiceSpec:
    """`spec` with a hub's draft model at its downloaded folder, if it was downloaded."""
    fetched = downloads.get(hub_draft(spec) or "")
    if fetched is None:
        return spec
    draft = DraftRef(uri=_folder(fetched))

    def pinned_in(engine: EngineSpec | None) -> EngineSpec | None:
        speculation = engine.speculation if engine else None
        if engine is None or not (speculation and speculation.draft):
            return engine
        if speculation.draft.uri != fetched.uri:
            return engine
        drafts = speculation.model_copy(update={"draft": draft})
        return engine.model_copy(update={"speculation": drafts})

    prefill = spec.prefill and spec.prefill.model_copy(
        update={"engine": pinned_in(spec.prefill.engine)}
    )
    return spec.model_copy(update={"engine": pinned_in(spec.engine), "prefill": prefill})


def _pinned(adapter: AdapterSpec, downloads: Mapping[str, FetchedAdapter]) -> AdapterSpec:
    """An adapter of a hub at its downloaded folder, if any version was downloaded; others
    unchanged."""
    fetched = downloads.get(adapter.name)
    if not adapter.is_fetched or fetched is None:
        return adapter
    return adapter.model_copy(update={"uri": _folder(fetched)})


def _folder(fetched: FetchedAdapter) -> str:
    repository = fetched.uri.partition("://")[2].partition("@")[0]
    return f"pvc://{fetched.claim}/{snapshot_path(repository, fetched.commit)}"


def spec_with_commit(service: Manifest) -> Manifest:
    """The spec of a service with the resolved commit as its revision, so that a moved branch
    changes nothing. Unchanged if the commit is not known."""
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
    """Assumed resolution of an unresolved model, for previews."""
    uri, revision, refresh = requested_version(model)
    return ModelStatus(
        uri=uri,
        revision=revision,
        refresh=refresh,
        commit=assumed_commit(revision),
        bytes=0,
        architecture=ARCHITECTURES[0],
    )


def assumed_commit(revision: str) -> str:
    """Assumed commit of an unresolved revision, for previews."""
    return revision if re.fullmatch("[0-9a-f]{40}", revision) else UNKNOWN_COMMIT


def previewed(pin: ModelStatus, service: str, model: ModelSpec) -> Manifest:
    """The status of a model that has arrived where engines look for it, for previews."""
    there = {"claim": claim_of(service, model), "claim_uid": None}
    return pin.model_copy(update=there).to_json_dict()
