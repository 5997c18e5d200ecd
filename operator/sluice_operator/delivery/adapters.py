"""How adapters and a draft model of a hub get to the engines: one Job resolves and downloads each
of them, once.

Pure. Downloaded adapters are recorded in status, and only recorded ones are in the file that
engines follow. If a version cannot be fetched, the former one stays; the model and other adapters
are not affected.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sluice_contract.cluster.termination import MODEL_FETCHED

from sluice_operator.api.adapters import AdapterSpec, HubDraft
from sluice_operator.api.conditions import Check
from sluice_operator.api.engine import ModelSpec
from sluice_operator.api.model_uri import BUCKETS, scheme_of
from sluice_operator.api.status import FetchedAdapter
from sluice_operator.apply.plan import Event
from sluice_operator.conditions.reasons import FETCHING
from sluice_operator.delivery.delivery import (
    Delivery,
    DeliveryObserved,
    Fetcher,
    fetch_task,
    hub_access,
)
from sluice_operator.delivery.jobs import Done, Failed, Lost, Outcome, Running, outcome_in
from sluice_operator.delivery.resolved_model import (
    assumed_commit,
    claim_of,
    fetched_adapters,
    is_fetched,
    uid_of_claim,
)
from sluice_operator.kube.kinds import JOB, Manifest, of_kind
from sluice_operator.manifests.fetching import adapter_arguments, fetch_job, model_arguments
from sluice_operator.manifests.metadata import Owner
from sluice_operator.validation.errors import INVALID

FETCHING_ADAPTERS: Final = "FetchingAdapters"
MAX_AT_ONCE: Final = 4
"""Most Jobs that run at a time."""
MAX_NAMED: Final = 8


@dataclass(frozen=True)
class AdapterDelivery:
    """How far adapters of a hub are on their way to the engines."""

    manifests: tuple[Manifest, ...] = ()
    """Manifests of the delivery, to be applied in this order."""
    fetched: tuple[FetchedAdapter, ...] = ()
    """Adapters that the status records now."""
    check: Check | None = None
    """Why some are missing; a failed one comes first."""
    events: tuple[Event, ...] = ()


NO_ADAPTERS: Final = AdapterDelivery()


@dataclass(frozen=True)
class _Task:
    """An adapter whose version is not there."""

    adapter: AdapterSpec
    job: Manifest
    outcome: Outcome
    is_made: bool
    """Whether its Job is there."""

    @property
    def name(self) -> str:
        return self.adapter.name

    @property
    def ends(self) -> bool:
        """Whether its Job creates no more pods."""
        return isinstance(self.outcome, Done | Failed)


def plan_adapters(
    observed: DeliveryObserved, top: Owner, model: ModelSpec, fetcher: Fetcher
) -> AdapterDelivery:
    """The delivery of the adapters of a hub that the spec names."""
    fetched = [adapter for adapter in model.adapters or () if adapter.is_fetched]
    claim = claim_of(top.service, model)
    if claim is None or (not fetched and is_fetched(model)):
        return NO_ADAPTERS
    access = () if is_fetched(model) else tuple(hub_access(top, model, fetcher))
    # Adapters on the claim of another cache count too, but not those on a claim that was created
    # again.
    recorded = {
        name: adapter
        for name, adapter in fetched_adapters(observed.service).items()
        if adapter.claim_uid == uid_of_claim(observed.children, adapter.claim)
    }
    missing = [
        adapter
        for adapter in fetched
        if not _is_fetched(recorded.get(adapter.name), adapter, model, claim)
    ]
    tasks = [
        _task(observed, top, model, fetcher, adapter, claim) for adapter in missing if fetcher.image
    ]
    done = {
        task.name: record for task in tasks if (record := _record(observed, task, model, claim))
    }
    records = (done.get(adapter.name) or recorded.get(adapter.name) for adapter in fetched)
    return AdapterDelivery(
        manifests=(*access, *_jobs(tasks)),
        fetched=tuple(record for record in records if record is not None),
        check=_check(tasks, recorded.keys()) if fetcher.image else _no_fetcher(missing),
        events=tuple(_event(record) for record in done.values()),
    )


def awaiting_draft(delivery: Delivery, adapters: AdapterDelivery) -> Delivery:
    """`delivery`, whose model is there, while its draft model among the `adapters` is missing.
    Engines wait for a draft model, but not for adapters."""
    check = adapters.check or Check("False", FETCHING, "the draft model is downloaded.")
    if check.reason == FETCHING_ADAPTERS:
        check = replace(check, reason=FETCHING)
    return replace(
        delivery,
        manifests=(*delivery.manifests, *adapters.manifests),
        waiting=check,
        fetched=adapters.fetched,
        events=(*delivery.events, *adapters.events),
    )


def assumed_adapters(service: str, model: ModelSpec) -> tuple[Manifest, ...]:
    """Assumed status of unresolved adapters, for previews."""
    claim = claim_of(service, model)
    return tuple(
        FetchedAdapter(
            name=adapter.name,
            uri=adapter.uri,
            refresh=model.refresh,
            commit=assumed_commit(adapter.revision),
            claim=claim,
        ).to_json_dict()
        for adapter in model.adapters or ()
        if adapter.is_fetched and claim is not None
    )


def _is_fetched(
    recorded: FetchedAdapter | None, adapter: AdapterSpec, model: ModelSpec, claim: str
) -> bool:
    key = (adapter.uri, model.refresh, claim)
    return recorded is not None and (recorded.uri, recorded.refresh, recorded.claim) == key


def _task(
    observed: DeliveryObserved,
    top: Owner,
    model: ModelSpec,
    fetcher: Fetcher,
    adapter: AdapterSpec,
    claim: str,
) -> _Task:
    arguments_of = model_arguments if isinstance(adapter, HubDraft) else adapter_arguments
    arguments = arguments_of(fetcher.hub.endpoint, adapter.repository, adapter.revision)
    task = fetch_task(top, "adapter", model, fetcher, arguments, claim)
    if scheme_of(model.uri) in BUCKETS:  # a hub does not get a bucket's credentials
        task = replace(task, token=None, identity=None)
    job = fetch_job(top, task)
    outcome = outcome_in(observed.children, observed.pods, job, MODEL_FETCHED, observed.refusals)
    if isinstance(outcome, Done) and not re.fullmatch("[0-9a-f]{40}", outcome.message):
        text = f"the fetcher's answer is not understood: {outcome.message[:256]}"
        outcome = Failed("FetcherMismatch", text)
    name = job["metadata"]["name"]
    live = (item["metadata"]["name"] for item in of_kind(observed.children, JOB))
    return _Task(adapter, job, outcome, is_made=name in live)


def _record(
    observed: DeliveryObserved, task: _Task, model: ModelSpec, claim: str
) -> FetchedAdapter | None:
    if not isinstance(task.outcome, Done):
        return None
    return FetchedAdapter(
        name=task.name,
        uri=task.adapter.uri,
        refresh=model.refresh,
        commit=task.outcome.message,
        claim=claim,
        claim_uid=uid_of_claim(observed.children, claim),
    )


def _jobs(tasks: Iterable[_Task]) -> Iterator[Manifest]:
    """Jobs that stay or are created, each once: two adapters may share a repository. A running Job
    continues before another is created. A Job with a lost outcome is deleted and created again."""
    jobs = {task.job["metadata"]["name"]: task for task in tasks}
    stay = [task for task in jobs.values() if not isinstance(task.outcome, Lost)]
    yield from (task.job for task in stay if task.ends)
    running = sorted((task for task in stay if not task.ends), key=lambda task: not task.is_made)
    yield from (task.job for task in running[:MAX_AT_ONCE])


def _check(tasks: Iterable[_Task], served: Collection[str]) -> Check | None:
    """Check of adapters that are not downloaded yet. `served`: names with a former version in
    use."""
    failed = [(task, task.outcome) for task in tasks if isinstance(task.outcome, Failed)]
    for task, outcome in failed:
        before = "; the version before is served" if task.name in served else ""
        more = f" So are {len(failed) - 1} others." if len(failed) > 1 else ""
        text = (
            f"{task.name} is not downloaded: {task.adapter.uri}: {outcome.message}{before}.{more}"
        )
        return Check("False", outcome.reason, text)
    names = [task.name for task in tasks]
    if not names:
        return None
    running = (task.outcome for task in tasks if isinstance(task.outcome, Running))
    troubled = next((outcome for outcome in running if outcome.reason), None)
    text = _listed(names)
    if troubled is not None:
        return Check("False", troubled.reason, f"{text}: {troubled.message}")
    return Check("False", FETCHING_ADAPTERS, f"{text}: downloaded from a hub.")


def _event(record: FetchedAdapter) -> Event:
    text = f"{record.name}: commit {record.commit} of {record.uri} is in claim {record.claim}."
    return Event("Normal", "AdapterFetched", text)


def _no_fetcher(missing: Iterable[AdapterSpec]) -> Check | None:
    if not (uris := [adapter.uri for adapter in missing]):
        return None
    allowed = "adapters that are not fetched, as SLUICE_FETCH_IMAGE of the operator is not set"
    text = f"spec.model.adapters: {_listed(uris)} is not allowed; allowed: {allowed}"
    return Check("False", INVALID, text)


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:MAX_NAMED])}{' and others' if len(names) > MAX_NAMED else ''}"
