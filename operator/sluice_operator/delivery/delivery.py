"""How a model of a hub or bucket gets to the engines: it is resolved once, and downloaded once if
there is a cache; engines are created only then.

Pure. The resolved commit is recorded in status, and the next reconcile acts on it. So nothing is
created from a commit that is not recorded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pydantic import ValidationError
from sluice_contract.cluster.termination import MODEL_FETCHED, MODEL_RESOLVED
from sluice_contract.config.model_facts import ResolvedModel
from sluice_contract.config.supported import ARCHITECTURES, QUANTISATIONS, allowed_quantisations
from sluice_contract.wire.fetch_progress import FetchProgress

from sluice_operator.api.conditions import Check
from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.model_uri import BUCKETS, scheme_of
from sluice_operator.api.pool import ModelFetch
from sluice_operator.api.status import FetchedAdapter, ModelStatus
from sluice_operator.apply.plan import Event
from sluice_operator.conditions.reasons import FETCHING, RESOLVING
from sluice_operator.delivery.image import image_refusal
from sluice_operator.delivery.jobs import Done, Failed, Lost, Outcome, Running, outcome_in
from sluice_operator.delivery.resolved_model import (
    claim_of,
    is_fetched,
    pin_of,
    requested_version,
    uid_of_claim,
)
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.fetching import (
    FETCH,
    FetchTask,
    fetch_account,
    fetch_arguments,
    fetch_job,
    fetch_policy,
    model_claim,
    resolve_arguments,
)
from sluice_operator.manifests.hub import HubAccess, ca_config_maps
from sluice_operator.manifests.metadata import Owner
from sluice_operator.manifests.placement import AS_IT_COMES, Placement
from sluice_operator.validation.errors import INVALID, Refusal

PLACE: Final = "spec.model.uri"
UNSUPPORTED_ARCHITECTURE: Final = "UnsupportedArchitecture"
QUANTISED: Final = "UnsupportedQuantization"
GB: Final = 1e9


@dataclass(frozen=True)
class Fetcher:
    """The image that fetches models, and how it reaches hubs."""

    image: str
    hub: HubAccess
    operator_namespace: str
    """Namespace of the operator, which asks fetching pods for their progress."""
    placement: Placement = AS_IT_COMES
    """Placement of the fetching Jobs."""
    kept_ports: frozenset[int] = frozenset()
    """Egress ports that running engines still need: of hubs and proxies in former settings."""
    kept_certificates: str = ""
    """CA bundle that running engines still mount, even where the operator's settings have none."""


@dataclass(frozen=True)
class DeliveryObserved:
    """Observed objects of the delivery of a service's model."""

    service: Manifest
    children: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]
    """Pods of the fetching Jobs."""
    progress: FetchProgress | None = None
    """How far the download is, where that is known."""
    refusals: Mapping[str, str] = field(default_factory=dict)
    """Why the API server makes no pod of a Job, by its uid."""


@dataclass(frozen=True)
class Delivery:
    """How far a model is on its way to the engines."""

    manifests: tuple[Manifest, ...] = ()
    """Manifests of the delivery, to be applied in this order."""
    waiting: Check | None = None
    """Set: no engine can be made of the model yet."""
    refusal: Refusal | None = None
    """Set: a person has to act."""
    status: ModelStatus | None = None
    """Model to record in the status now; None: unchanged."""
    fetched: tuple[FetchedAdapter, ...] = ()
    """Draft model and adapters to record in the status while engines wait for the draft model."""
    events: tuple[Event, ...] = ()


NO_DELIVERY: Final = Delivery()
"""Delivery of a model that is on the engines' nodes or in a volume already."""


def plan_delivery(
    observed: DeliveryObserved, top: Owner, model: ModelSpec, fetcher: Fetcher
) -> Delivery:
    """The delivery of the model that the spec names."""
    if not is_fetched(model):
        return Delivery(refusal=image_refusal(model, fetcher.image))
    if not fetcher.image:
        allowed = "a model that is not fetched, as SLUICE_FETCH_IMAGE of the operator is not set"
        message = f"{PLACE}: {model.uri} is not allowed; allowed: {allowed}"
        return Delivery(refusal=Refusal(INVALID, PLACE, message))
    pin = pin_of(observed.service, model)
    always = tuple(hub_access(top, model, fetcher))
    if pin is None:
        delivery = _resolve(observed, top, model, fetcher)
    elif refusal := _unsupported(pin):
        delivery = Delivery(refusal=refusal)
    elif (claim := claim_of(top.service, model)) is None or _has_all(observed, pin, claim):
        delivery = Delivery()
    else:
        delivery = _download(observed, top, model, fetcher, _replace_claim(observed, pin, claim))
    return replace(delivery, manifests=(*always, *delivery.manifests))


def pod_fetch(service: str, model: ModelSpec, fetcher: Fetcher) -> ModelFetch | None:
    """Download by each engine itself, for a pinned model without a cache; None for other models."""
    if not is_fetched(model) or model.cache is not None:
        return None
    assert model.revision is not None
    return ModelFetch(
        image=fetcher.image,
        endpoint=fetcher.hub.endpoint,
        uri=model.uri,
        commit=model.revision,
        token_secret_ref=model.token_secret_ref,
        network=fetcher.hub.network(service),
        resources=model.resources,
    )


def _has_all(observed: DeliveryObserved, pin: ModelStatus, claim: str) -> bool:
    """Whether the commit was downloaded to this claim, and not to a former one of that name."""
    if pin.claim != claim:
        return False
    return pin.claim_uid is None or pin.claim_uid == uid_of_claim(observed.children, claim)


def _replace_claim(observed: DeliveryObserved, pin: ModelStatus, claim: str) -> ModelStatus:
    """`pin`, with everything downloaded to `claim`."""
    return pin.model_copy(
        update={"claim": claim, "claim_uid": uid_of_claim(observed.children, claim)}
    )


def hub_access(top: Owner, model: ModelSpec, fetcher: Fetcher) -> Iterator[Manifest]:
    """Manifests that stay, in addition to Jobs, while the service has a model or adapters of a
    hub."""
    yield fetch_account(top)
    ports = fetcher.hub.ports | fetcher.kept_ports
    yield fetch_policy(top, ports, fetcher.operator_namespace, identity_of(model))
    certificates = fetcher.hub.certificates or fetcher.kept_certificates
    yield from ca_config_maps(top, certificates, FETCH)
    if model.cache is not None and model.cache.size is not None:
        yield model_claim(top, model.cache)


def _resolve(
    observed: DeliveryObserved, top: Owner, model: ModelSpec, fetcher: Fetcher
) -> Delivery:
    uri, revision, refresh = requested_version(model)
    arguments = resolve_arguments(fetcher.hub.endpoint_of(uri), uri, revision)
    job = fetch_job(top, fetch_task(top, "resolve", model, fetcher, arguments))
    what = f"{uri} at {revision}"
    outcome = outcome_in(observed.children, observed.pods, job, MODEL_RESOLVED, observed.refusals)
    if not isinstance(outcome, Done):
        text = f"{what} is being resolved to a commit."
        return _unfinished(job, outcome, Check("False", RESOLVING, text))
    try:
        model_facts = ResolvedModel.model_validate_json(outcome.message, extra="ignore")
    except ValidationError:
        message = f"the fetcher's answer is not understood: {outcome.message[:256]}"
        return Delivery((job,), refusal=_refusal("FetcherMismatch", what, message))
    status = ModelStatus(uri=uri, revision=revision, refresh=refresh, **model_facts.model_dump())
    text = f"{what} is commit {model_facts.commit}, {_gb(model_facts.bytes)}."
    event = Event("Normal", "ModelResolved", text)
    return Delivery((job,), Check("False", RESOLVING, text), status=status, events=(event,))


def _download(
    observed: DeliveryObserved, top: Owner, model: ModelSpec, fetcher: Fetcher, pin: ModelStatus
) -> Delivery:
    arguments = fetch_arguments(fetcher.hub.endpoint_of(pin.uri), pin.uri, pin.commit)
    job = fetch_job(top, fetch_task(top, "fetch", model, fetcher, arguments, pin.claim))
    what = f"commit {pin.commit} of {pin.uri} to claim {pin.claim}"
    outcome = outcome_in(observed.children, observed.pods, job, MODEL_FETCHED, observed.refusals)
    if not isinstance(outcome, Done):
        text = f"{_so_far(observed.progress) or _gb(pin.bytes)}: {what}."
        return _unfinished(job, outcome, Check("False", FETCHING, text))
    event = Event("Normal", "ModelFetched", f"{what}: complete and verified.")
    done = Check("False", FETCHING, f"{what}: complete and verified.")
    return Delivery((job,), done, status=pin, events=(event,))


def fetch_task(
    top: Owner,
    name: str,
    model: ModelSpec,
    fetcher: Fetcher,
    arguments: tuple[str, ...],
    claim: str | None = None,
) -> FetchTask:
    """Task of one fetching Job of the service."""
    return FetchTask(
        name=name,
        image=fetcher.image,
        arguments=arguments,
        token=model.token_secret_ref,
        refresh=model.refresh,
        claim=claim,
        network=fetcher.hub.network(top.service),
        placement=fetcher.placement,
        identity=identity_of(model),
        resources=model.resources,
    )


def identity_of(model: ModelSpec) -> str | None:
    """The scheme of a bucket that Jobs may reach by their ServiceAccount's identity; None for
    others. Buckets without a Secret have it. Azure's always have it, because a Secret may hold only
    the account's name."""
    scheme = scheme_of(model.uri)
    by_account = scheme == "az" or model.token_secret_ref is None
    return scheme if scheme in BUCKETS and by_account else None


def _unfinished(job: Manifest, outcome: Outcome, progress: Check) -> Delivery:
    """The delivery while its Job runs, or after it failed. A Job with a lost outcome is deleted and
    created again."""
    if isinstance(outcome, Failed):
        return Delivery((job,), refusal=_refusal(outcome.reason, "", outcome.message))
    if isinstance(outcome, Lost):
        return Delivery(waiting=progress)
    if isinstance(outcome, Running) and outcome.reason:
        return Delivery((job,), Check("False", outcome.reason, outcome.message))
    if isinstance(outcome, Running) and not outcome.has_pod:
        text = f"{progress.message} Job {job['metadata']['name']} has no pod yet."
        return Delivery((job,), replace(progress, message=text))
    return Delivery((job,), progress)


def _unsupported(pin: ModelStatus) -> Refusal | None:
    if pin.quantization is not None and pin.quantization not in QUANTISATIONS:
        head = f"quantization {pin.quantization} of commit {pin.commit} is not allowed"
        own = allowed_quantisations(pin.quantization)
        allowed = f"allowed: {own}, or weights that are not quantised"
        return _refusal(QUANTISED, pin.uri, f"{head}; {allowed}")
    if pin.architecture in ARCHITECTURES:
        return None
    named = pin.architecture or "none that is named"
    allowed = f"allowed: {', '.join(ARCHITECTURES)}"
    message = f"architecture {named} of commit {pin.commit} is not allowed; {allowed}"
    return _refusal(UNSUPPORTED_ARCHITECTURE, pin.uri, message)


def _refusal(reason: str, what: str, message: str) -> Refusal:
    head = f"{what}: " if what else ""
    return Refusal(reason, PLACE, f"{PLACE}: {head}{message}")


def _so_far(progress: FetchProgress | None) -> str:
    if progress is None:
        return ""
    text = f"{progress.bytes / GB:.1f} of {_gb(progress.total)}"
    if progress.eta_seconds is None:
        return text
    speed = f"{progress.bytes_per_second / 1e6:.0f} MB/s"
    return f"{text} at {speed}, {_time(progress.eta_seconds)} left"


def _time(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _gb(count: int) -> str:
    return f"{count / GB:.1f} GB"
