"""What the engines of a service hold of its GPU budget, counted from their pods.

Pure. Pods are counted by their labels, so also those whose EnginePool has gone: they hold their
GPUs for as long as they drain. Knows no roll-out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from sluice_contract import labels
from sluice_contract.labels import Role

from sluice_operator.accelerators.wanted import gpu_count
from sluice_operator.api.service import InferenceServiceSpec
from sluice_operator.conditions.pods import is_draining, is_finished
from sluice_operator.kube.kinds import ENGINE_POOL, Manifest, of_kind
from sluice_operator.manifests.engine import revision_of
from sluice_operator.manifests.metadata import ENGINE
from sluice_operator.service.budget import Budget, Counted
from sluice_operator.service.observe import ServiceObserved
from sluice_operator.service.resolve.replicas import former_pools, pool_gpus


def budget_of(observed: ServiceObserved, spec: InferenceServiceSpec) -> Budget | None:
    """The service's budget and who holds how much of it; None where there is none."""
    if spec.gpu_budget is None:
        return None
    gpus = {role: gpu_count(spec.pool(role).accelerator) for role in spec.roles}
    counted = {role: _counted(_engines(observed, role)) for role in spec.roles}
    surges = {
        Role(pool["spec"]["role"]): pool["spec"].get("podSurge", 0)
        for pool in of_kind(observed.children, ENGINE_POOL)
    }
    return Budget(spec.gpu_budget, gpus, counted, surges, other_mode_gpus(observed, spec))


def _counted(pods: Iterable[Manifest]) -> Counted:
    found = tuple(pods)
    live = [pod for pod in found if not is_draining(pod)]
    return Counted(Counter(map(revision_of, live)), len(found) - len(live))


def other_mode_gpus(observed: ServiceObserved, spec: InferenceServiceSpec) -> int:
    """GPUs of engines of roles that the mode does not have, and of those that their pools have yet
    to make."""
    former = [role for role in Role if role not in spec.roles]
    held = sum(_gpus(pod) for role in former for pod in _engines(observed, role))
    for pool in former_pools(observed, spec):
        engines = _engines(observed, Role(pool["spec"]["role"]))
        lacking = pool["spec"]["replicas"] - sum(not is_draining(pod) for pod in engines)
        held += pool_gpus(pool) * max(0, lacking)
    return held


def _engines(observed: ServiceObserved, role: Role) -> list[Manifest]:
    """The pods of a role that hold GPUs, or will."""
    return [
        pod
        for pod in observed.engines
        if pod["metadata"]["labels"].get(labels.ROLE) == role and not is_finished(pod)
    ]


def _gpus(pod: Manifest) -> int:
    """GPUs of an engine whose pool may be gone: what it has most of, of devices; a device for RDMA
    is one at most."""
    limits = next(
        (
            (each.get("resources") or {}).get("limits") or {}
            for each in pod["spec"]["containers"]
            if each["name"] == ENGINE
        ),
        {},
    )
    devices = (int(count) for name, count in limits.items() if _is_device(name))
    return max(devices, default=0)


def _is_device(resource: str) -> bool:
    return "/" in resource
