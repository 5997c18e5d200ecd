"""The situations of an InferenceService's life whose status is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from unittest.mock import patch

from sluice_contract.config.sizing import GENERAL
from sluice_operator.kube.kinds import Manifest
from sluice_operator.pool.plan import plan_pool
from sluice_operator.pool.status import pool_status
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.plan import plan_service
from sluice_operator.service.report.status import service_status

from tests.operator.examples import (
    NOW,
    complete,
    live,
    pods,
    pool_observed,
    service,
    service_observed,
    service_plan,
    written,
)
from tests.operator.statuses import (
    Told,
)

NO_ENGINES: Manifest = {"replicas": 0}
LATE = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"}
PINNED = {"value": 77, "source": "General", "from": "default"}


def with_pool(
    engines_ready: bool, routers_ready: bool, spec: Manifest | None = None
) -> ServiceObserved:
    plan = service_plan(spec)
    router = plan.router
    assert router is not None
    children = [live(m) for m in written(plan) if m["kind"] not in ("EnginePool", "Deployment")]
    pool = live(plan.pools[0].manifest)
    pool["status"] = with_pool_status(pool, engines_ready)
    deployment = complete(router) if routers_ready else live(router, observedGeneration=1)
    router_pods = pods(router) if routers_ready else pods(router, phase="Pending")
    there = [*children, pool, deployment]
    return service_observed(service(spec), there, pods=tuple(router_pods))


def with_pool_status(pool: Manifest, ready: bool) -> Manifest:
    observed = pool_observed(pool)
    deployment = plan_pool(observed).deployment
    assert deployment is not None
    if ready:
        observed = pool_observed(pool, [complete(deployment)], pods(deployment))
    else:
        ended = {"exitCode": 1, "message": '{"reason":"ModelLoadFailed","message":"no weights"}'}
        container = {"name": "engine", "ready": False, "state": {"terminated": ended}}
        broken = pods(deployment, containerStatuses=[container])
        observed = pool_observed(pool, [live(deployment, observedGeneration=1)], broken)
    return pool_status(observed, plan_pool(observed), NOW)


def serving_service() -> ServiceObserved:
    return with_pool(engines_ready=True, routers_ready=True)


def outdated() -> ServiceObserved:
    """Ready by the former spec; the new one has been seen, and not applied yet."""
    changed = service({"engine": {"chunkSize": 64}}, generation=2)
    return replace(serving_service(), service=changed)


def paused_service() -> ServiceObserved:
    return replace(serving_service(), service=service({"paused": True}))


def paused_before_applying() -> ServiceObserved:
    return replace(
        serving_service(), service=service({"paused": True, "engine": {"chunkSize": 64}})
    )


SLO: Manifest = {"slo": {"percentile": 90}}
"""Refused, as it promises nothing."""


def with_spec(before: ServiceObserved, spec: Manifest, generation: int = 2) -> ServiceObserved:
    """What is seen once the service, with the status it had, asks for something else."""
    return replace(
        before, service=service(spec, generation=generation) | {"status": status_of(before)}
    )


def refused_service() -> ServiceObserved:
    return with_spec(serving_service(), SLO)


def sized_before(spec: Manifest | None = None) -> ServiceObserved:
    """What a release with other sizes has made of a service, whose spec is `spec` now."""
    with patch.dict(GENERAL, max_running_requests=77):
        made = [live(item) for item in written(service_plan())]
    return service_observed(service(spec, generation=2), made)


def routers_without_an_image(*conditions: Manifest) -> ServiceObserved:
    """Engines serve; `conditions` are those of the routers' Deployment."""
    observed, router = serving_service(), service_plan().router
    assert router is not None
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    container = {"name": "router", "ready": False, "state": waiting}
    others = [child for child in observed.children if child["kind"] != "Deployment"]
    current = live(router, observedGeneration=1, conditions=list(conditions))
    stuck = pods(router, phase="Pending", containerStatuses=[container])
    return replace(observed, children=(*others, current), pods=tuple(stuck))


def engines_unschedulable() -> ServiceObserved:
    observed = with_pool(engines_ready=False, routers_ready=True)
    pool = next(child for child in observed.children if child["kind"] == "EnginePool")
    deployment = plan_pool(pool_observed(pool)).deployment
    assert deployment is not None
    nowhere = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "persistentvolumeclaim models not found",
    }  # fmt: skip
    stuck = pods(deployment, phase="Pending", conditions=[nowhere])
    below = pool_observed(pool, [live(deployment, observedGeneration=1)], stuck)
    pool["status"] = pool_status(below, plan_pool(below), NOW)
    return observed


def scaled_to_zero() -> ServiceObserved:
    return with_pool(engines_ready=True, routers_ready=True, spec=NO_ENGINES)


def router_died_in_a_rollout() -> ServiceObserved:
    rolling = with_spec(serving_service(), {"engine": {"chunkSize": 64}})
    return replace(rolling, pods=())


SITUATIONS: dict[str, tuple[Callable[[], ServiceObserved], Told]] = {
    "new": (service_observed, Told("False", "False", "Applying")),
    "ready": (serving_service, Told("True", "True", "AllReady")),
    "model-missing": (
        lambda: with_pool(engines_ready=False, routers_ready=True),
        Told("False", "False", "ModelLoadFailed"),
    ),
    "routers-starting": (
        lambda: with_pool(engines_ready=True, routers_ready=False),
        Told("False", "False", "Starting"),
    ),
    "routers-without-an-image": (
        routers_without_an_image, Told("False", "False", "ImagePullBackOff"),
    ),
    "routers-given-up": (
        lambda: routers_without_an_image(LATE), Told("False", "False", "ImagePullBackOff"),
    ),
    "engines-unschedulable": (engines_unschedulable, Told("False", "False", "Unschedulable")),
    "outdated": (outdated, Told("True", "False", "Applying")),
    "router-died-in-a-rollout": (router_died_in_a_rollout, Told("False", "False", "Starting")),
    "scaled-to-zero": (scaled_to_zero, Told("True", "True", "ScaledToZero")),
    "paused": (paused_service, Told("True", "True", "AllReady")),
    "paused-before-applying": (paused_before_applying, Told("True", "False", "Paused")),
    "refused": (refused_service, Told("True", "False", "NotImplemented")),
    "refused-at-first": (
        lambda: service_observed(service(SLO)), Told("False", "False", "NotImplemented"),
    ),
}  # fmt: skip
STALLED = {"routers-given-up", "model-missing", "refused", "refused-at-first"}


def status_of(observed: ServiceObserved) -> Manifest:
    return service_status(observed, plan_service(observed), NOW)
