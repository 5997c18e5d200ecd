"""Status of an EnginePool: its engines by revision, and why they are not all ready.

Pure; `now` is only used for transitions.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from statistics import median_low
from typing import Final

from sluice_contract.cluster import labels

from sluice_operator.api.conditions import (
    ADAPTERS_LOADED,
    MODEL_AVAILABLE,
    PROGRESSING,
    READY,
    RECONCILING,
    STALLED,
    UPDATED,
    Check,
)
from sluice_operator.api.pool import EnginePoolSpec
from sluice_operator.api.status import (
    AdapterStatus,
    EnginePoolStatus,
    HandoverStatus,
    ReportedAccelerator,
    RevisionStatus,
)
from sluice_operator.apply.applier import Refused
from sluice_operator.conditions import reasons
from sluice_operator.conditions.conditions import (
    answering,
    apply_failed,
    conditions,
    progressing,
    reconciling,
    settled,
    unowned,
)
from sluice_operator.conditions.deployments import (
    exceeded_since,
    given_up,
    makes_progress,
    refused_for_long,
    shortfall,
)
from sluice_operator.conditions.pods import (
    MODEL_REASONS,
    PodFailure,
    first_failure,
    halting_failure,
    is_draining,
    is_finished,
    is_gated,
    is_ready,
)
from sluice_operator.conditions.waits import with_remedy
from sluice_operator.kube.kinds import DEPLOYMENT, Manifest, controller, of_kind
from sluice_operator.manifests.engine import MIN_READY_SECONDS, revision_of
from sluice_operator.manifests.metadata import selector_labels
from sluice_operator.manifests.ownership import listed
from sluice_operator.pool.observe import PoolObserved
from sluice_operator.pool.plan import PoolChildren, is_leaving
from sluice_operator.probes.adapters import EngineAdapters

NO_PREFILL: Final = "No engine computes prompts, so no request is answered."


def pool_status(
    observed: PoolObserved, plan: PoolChildren, now: datetime, refused: tuple[Refused, ...] = ()
) -> Manifest:
    """The whole status of an EnginePool; while it is leaving, its status does not change.
    `refused`: writes of the plan that failed."""
    if is_leaving(observed):
        return dict(observed.pool.get("status") or {})
    pods = [pod for pod in observed.pods if not is_finished(pod)]
    current = [pod for pod in pods if revision_of(pod) == plan.revision]
    ready = sum(map(is_ready, pods))
    meta, desired = observed.pool["metadata"], plan.spec.replicas if plan.spec else 0
    generation, before = meta.get("generation", 0), observed.pool.get("status") or {}
    updated = _without_claims(observed, plan) or _updated(plan, current, pods, now)
    if updated.is_true:
        updated = _left_behind(observed, plan, pods) or updated
    if updated.is_true or any(refusal.of.kind == DEPLOYMENT.kind for refusal in refused):
        updated = apply_failed(refused) or updated  # a budget alone keeps no engine from starting
    completed = generation if updated.is_true else before.get("completedGeneration")
    serving = answering(ready, _desired_engines(observed, plan), "engines", updated)
    checks = _checks(plan, current, pods, serving, updated, now)
    checks |= reconciling(checks.pop(RECONCILING), is_done=completed == generation)
    if plan.spec and (adapters := adapters_loaded(observed, plan.spec)):
        checks[ADAPTERS_LOADED] = adapters
    status = EnginePoolStatus(
        observed_generation=generation,
        completed_generation=completed,
        replicas=sum(not is_draining(pod) for pod in pods),
        ready_replicas=ready,
        updated_replicas=sum(map(is_ready, current)),
        draining_replicas=sum(map(is_draining, pods)),
        selector=_selector(plan),
        summary=f"{ready}/{desired}",
        revisions=_revisions(observed, pods, plan),
        accelerators=_accelerators(observed, current),
        handover=_handover(observed, current),
        adapters=adapter_statuses(observed),
    ).to_json_dict()
    checked = conditions(before.get("conditions") or (), checks, generation, now)
    return status | {"conditions": checked}


def _left_behind(observed: PoolObserved, plan: PoolChildren, pods: list[Manifest]) -> Check | None:
    """The check of engines that no Deployment of the pool ends; None: there are none. Their
    Deployment has no owner or another owner, or their revision has no Deployment."""
    name = observed.pool["spec"]["serviceName"]
    if check := unowned(observed.children, observed.foreign, name, paused=plan.paused):
        return check
    known = {plan.revision, *map(revision_of, of_kind(observed.children, DEPLOYMENT))}
    others = [pod for pod in pods if revision_of(pod) not in known and not is_draining(pod)]
    if bare := [pod for pod in others if controller(pod) is None]:
        text = f"{listed(bare)}: no Deployment has this, and it answers beside the engines."
        return Check("False", reasons.NOT_OWNED, f"{text} Delete it.")
    if others:
        text = f"{listed(others)}: its Deployment is gone. If it stays, delete its ReplicaSet."
        return Check("False", reasons.ROLLING_OUT, text)
    return None


def _desired_engines(observed: PoolObserved, plan: PoolChildren) -> int:
    """How many engines there should be. For an edited pool: as its Deployment says. For a pool that
    cannot be read: at least one."""
    if not plan.edited:
        return plan.spec.replicas if plan.spec else 1
    deployments = of_kind(observed.children, DEPLOYMENT)
    return sum(d["spec"]["replicas"] for d in deployments if revision_of(d) == plan.revision)


def _checks(
    plan: PoolChildren,
    current: list[Manifest],
    pods: list[Manifest],
    serving: Check,
    updated: Check,
    now: datetime,
) -> dict[str, Check]:
    failure, hopeless = first_failure(current), _given_up(plan, current, pods, now)
    stalled = _stalled(plan, updated, hopeless=hopeless)
    moves = _moves(plan, updated, stalled)
    halted = _halted(plan, current, pods, updated, hopeless=hopeless)
    return {
        READY: serving,
        UPDATED: updated,
        PROGRESSING: halted or progressing(moves, updated),
        MODEL_AVAILABLE: _model(any(map(is_ready, current)), failure, updated),
        RECONCILING: moves,
        **({STALLED: stalled} if stalled else {}),
    }


def _updated(
    plan: PoolChildren, current: list[Manifest], pods: list[Manifest], now: datetime
) -> Check:
    if plan.refusal is not None:
        return Check("False", plan.refusal.reason, plan.refusal.message)
    assert plan.spec is not None
    desired, reached = plan.spec.replicas, plan.progress
    ready, others_ready = sum(map(is_ready, current)), _others_ready(pods, plan)
    if plan.edited:
        return Check("False", reasons.EDITED, f"engines ready: {ready}; {plan.edited}.")
    count = f"{ready} of {desired} engines ready"
    if others_ready:
        count += f", {others_ready} of the former revision still serve"
    if plan.paused and (reached is None or not reached.applied):
        text = f"{count}; the new spec waits, because the InferenceService is paused."
        return Check("False", reasons.PAUSED, text)
    if reached is None or not reached.applied:
        return Check("False", reasons.APPLYING, f"{count}; the new spec is being applied.")
    if reached.complete and ready >= desired:
        return _complete(plan, plan.spec, count)
    reason = reasons.ROLLING_OUT if others_ready else reasons.STARTING
    rest = _rest(plan, desired, ready)
    return shortfall(reached, current, count, now, reason, rest)


def _rest(plan: PoolChildren, desired: int, ready: int) -> str:
    """State of engines of the desired revision that are not ready, or not for long enough."""
    assert plan.deployment is not None
    asked = min(desired, plan.deployment["spec"]["replicas"])
    if ready >= desired:
        return f"complete once all of them have been ready for {MIN_READY_SECONDS} seconds"
    if asked >= desired:
        return "the others are starting"
    starting = f"{asked - ready} are starting, " if asked > ready else ""
    return f"{starting}{desired - asked} come later in the roll-out"


def _without_claims(observed: PoolObserved, plan: PoolChildren) -> Check | None:
    """The check of claims for devices that the API server has dropped silently because it does not
    know them; None: it has not."""
    accelerator = plan.spec.accelerator if plan.spec else None
    if accelerator is None or accelerator.claim_template is None:
        return None
    for item in of_kind(observed.children, DEPLOYMENT):
        pod = item["spec"]["template"]["spec"]
        if revision_of(item) == plan.revision and "resourceClaims" not in pod:
            text = "accelerator.claimTemplate: this cluster's API server drops resourceClaims of "
            needs = "pods; it takes Kubernetes 1.34 or newer, with DynamicResourceAllocation on."
            return Check("False", reasons.CLAIMS_NOT_SERVED, text + needs)
    return None


def _complete(plan: PoolChildren, spec: EnginePoolSpec, count: str) -> Check:
    if spec.replicas and len(spec.revisions or ()) > 1:
        text = f"{count}; the former revision stays until the roll-out of the service is done."
        return Check("False", reasons.ROLLING_OUT, text)
    if spec.replicas and spec.pod_surge:
        text = f"{count}; all of their pods are new, and none comes beside them any more."
        return Check("False", reasons.ROLLING_OUT, text)
    if spec.replicas:
        return Check("True", reasons.ALL_READY, f"{count}.")
    text = f"No engine is asked for: {plan.replicas_place} is 0."
    if plan.replicas_place.startswith("spec.prefill.replicas "):
        text += f" {NO_PREFILL}"
    return Check("True", reasons.SCALED_TO_ZERO, text)


def _moves(plan: PoolChildren, updated: Check, stalled: Check | None) -> Check:
    paused = "spec.paused of the InferenceService is true." if plan.paused else ""
    rests = settled(updated, stalled, paused, "Every engine is of the current revision.")
    return rests or Check("True", updated.reason, updated.message)


def _given_up(
    plan: PoolChildren, current: list[Manifest], pods: list[Manifest], now: datetime
) -> bool:
    reached = plan.progress
    is_given_up = reached is not None and given_up(reached, current, now)
    return is_given_up or refused_for_long(reached, pods, now)


def _halted(
    plan: PoolChildren,
    current: list[Manifest],
    pods: list[Manifest],
    updated: Check,
    *,
    hopeless: bool,
) -> Check | None:
    """A stopped roll-out: engines of the desired revision fail, and engines of the former one still
    serve. It continues by itself if the new engines become ready."""
    if updated.is_true or updated.reason in reasons.HEALTHY or not _others_ready(pods, plan):
        return None
    failure = halting_failure(current)
    if failure is not None:
        text = f"{failure.reason}: {failure}"
    elif hopeless:
        text = f"{updated.reason}: {updated.message}"
    else:
        return None
    text += f"{'' if text.endswith('.') else '.'} No more engines of revision {plan.revision} come;"
    return Check("False", reasons.ROLLOUT_HALTED, f"{text} the former ones serve on.")


def _model(ready: bool, failure: PodFailure | None, updated: Check) -> Check:
    if failure is not None and failure.reason in MODEL_REASONS:
        return Check("False", failure.reason, str(failure))
    if ready:
        return Check("True", "Loaded", "An engine has loaded the model.")
    if updated.reason == reasons.SCALED_TO_ZERO:
        return Check("Unknown", updated.reason, updated.message)
    return Check("Unknown", "NotLoadedYet", "No engine has loaded the model yet.")


def _stalled(plan: PoolChildren, updated: Check, *, hopeless: bool) -> Check | None:
    troubled = not updated.is_true and updated.reason not in reasons.HEALTHY
    if plan.refusal is not None or updated.reason in reasons.STALLING:
        return Check("True", updated.reason, updated.message)
    if troubled and hopeless:
        return Check("True", updated.reason, with_remedy(updated))
    return None


def _others_ready(pods: list[Manifest], plan: PoolChildren) -> int:
    return sum(is_ready(pod) and revision_of(pod) != plan.revision for pod in pods)


def _selector(plan: PoolChildren) -> str | None:
    if plan.spec is None:
        return None
    labels = selector_labels(plan.spec.service_name, plan.spec.role)
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _revisions(
    observed: PoolObserved, pods: list[Manifest], plan: PoolChildren
) -> list[RevisionStatus]:
    counts = Counter(revision_of(pod) for pod in pods)
    ready = Counter(revision_of(pod) for pod in pods if is_ready(pod))
    since = {revision_of(d): exceeded_since(d) for d in of_kind(observed.children, DEPLOYMENT)}
    loading = Counter(
        revision_of(pod) for pod in pods if makes_progress(pod, since.get(revision_of(pod), ""))
    )
    gated = Counter(revision_of(pod) for pod in pods if is_gated(pod) and not is_draining(pod))
    revisions = [
        RevisionStatus(
            name=name,
            config=_config(deployment),
            replicas=counts[name],
            ready=ready[name],
            loading=loading[name] or None,
            gated=gated[name] or None,
            current=name == plan.revision,
        )
        for deployment in of_kind(observed.children, DEPLOYMENT)
        if (name := (deployment["metadata"].get("labels") or {}).get(labels.REVISION))
    ]
    return sorted(revisions, key=lambda revision: (not revision.current, revision.name))[:32]


def _accelerators(
    observed: PoolObserved, current: list[Manifest]
) -> list[ReportedAccelerator] | None:
    reported = (observed.accelerators.get(pod["metadata"]["name"]) for pod in current)
    counts = Counter(accelerator for accelerator in reported if accelerator is not None)
    accelerators = [
        ReportedAccelerator(
            product=accelerator.product,
            memory_mib=accelerator.memory_mib,
            count=accelerator.count,
            engines=engines,
        )
        for accelerator, engines in counts.items()
    ]
    return (
        sorted(accelerators, key=lambda status: (-status.engines, status.product or ""))[:32]
        or None
    )


def _handover(observed: PoolObserved, current: list[Manifest]) -> HandoverStatus | None:
    """Backend and protocol of the first engine that reports them, as all engines of a revision have
    the same; the rate is the median of all."""
    reported = [observed.wires.get(pod["metadata"]["name"]) for pod in current]
    wires = [wire for wire in reported if wire is not None]
    if not wires:
        return None
    rates = [wire.gigabytes_per_second for wire in wires if wire.gigabytes_per_second is not None]
    return HandoverStatus(
        backend=wires[0].backend,
        protocol=wires[0].protocol,
        megabytes_per_second=round(median_low(rates) * 1000) if rates else None,
    )


def _config(deployment: Manifest) -> str:
    volumes = deployment["spec"]["template"]["spec"].get("volumes") or ()
    return next((v["configMap"]["name"] for v in volumes if v["name"] == "config"), "")


LOADED: Final = "Loaded"
LOADING: Final = "Loading"
LOAD_FAILED: Final = "LoadFailed"
NO_ENGINE: Final = "NoEngine"
MAX_SHOWN: Final = 512
MAX_MESSAGE: Final = 1024


def adapter_statuses(observed: PoolObserved) -> list[AdapterStatus] | None:
    """Where each adapter is loaded, by name; None where no engine says."""
    reports = observed.adapters.values()
    loaded = Counter(name for report in reports for name in report.loaded)
    failed = Counter(name for report in reports for name in report.failed)
    why = {name: text for report in reports for name, text in report.failed.items()}
    return [
        AdapterStatus(
            name=name,
            loaded=loaded[name],
            failed=failed[name],
            message=why[name][:MAX_MESSAGE] if name in why else None,
        )
        for name in sorted(loaded | failed)[:MAX_SHOWN]
    ] or None


def adapters_loaded(observed: PoolObserved, spec: EnginePoolSpec) -> Check | None:
    """The condition AdaptersLoaded; None for a pool without adapters."""
    if spec.adapters_digest is None:
        return None
    reports = observed.adapters
    if not reports:
        return Check("Unknown", NO_ENGINE, "No engine is ready that would load adapters.")
    done = {pod: report for pod, report in reports.items() if report.digest == spec.adapters_digest}
    for pod in sorted(done):
        if done[pod].failed:
            return Check("False", LOAD_FAILED, _failed(pod, done[pod]))
    count = f"{len(done)} of {len(reports)} ready engines have the adapters that are asked for"
    if len(done) < len(reports):
        return Check("False", LOADING, f"{count}.")
    return Check("True", LOADED, f"{count}.")


def _failed(pod: str, adapters: EngineAdapters) -> str:
    name, why = min(adapters.failed.items())
    more = len(adapters.failed) - 1
    rest = f"; so are {more} others" if more else ""
    return f"{name} is not loaded in {pod}: {why[:MAX_MESSAGE]}{rest}. The others are served."
