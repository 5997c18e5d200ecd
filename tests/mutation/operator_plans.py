"""Lines of the operator's roll-outs, of their budget and of what its status says, each with a way
to break it."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

SERVICE: Final = "operator/service"
ROLLOUT: Final = ("test_rollout",)
IN_PLACE: Final = ("test_rollout_in_place",)
BUDGET: Final = ("test_budget",)
STATUS: Final = ("test_service_status",)

OPERATOR_MUTATIONS: Final = (
    Mutation(
        "roll-out: it is complete with fewer engines than are asked for",
        "rollout",
        "self.wanted.settled and self.wanted.replicas == self.replicas",
        "self.wanted.settled",
        ROLLOUT,
        package=SERVICE,
    ),
    Mutation(
        "roll-out: a partner goes without which a stable revision serves no longer",
        "rollout",
        "return any(kept) and not all(kept)",
        "return False",
        ROLLOUT,
        package=SERVICE,
    ),
    Mutation(
        "roll-out: the former revision goes before the new one is noted",
        "rollout",
        "if complete and stable == wanted:",
        "if complete:",
        ROLLOUT,
        package=SERVICE,
    ),
    Mutation(
        "roll-out: one pool is complete without the other",
        "rollout",
        "return shown and all(pool.is_complete or pool.is_asleep for pool in pools)",
        "return shown",
        ROLLOUT,
        package=SERVICE,
    ),
    Mutation(
        "roll-out: nothing that serves is kept beside the stable revision",
        "rollout",
        "    _keep_serving(pools, shares)\n",
        "",
        ROLLOUT,
        package=SERVICE,
    ),
    Mutation(
        "roll-out: the stable revision grows with the wanted one",
        "rollout",
        "return pool.replicas if stopped or not before else min(before, pool.replicas)",
        "return pool.replicas",
        ROLLOUT,
        package=SERVICE,
    ),
    Mutation(
        "roll-out: a revision that has stopped may have no engine to show that it works",
        "rollout",
        "return min(pool.replicas, max(1, before))",
        "return min(pool.replicas, before)",
        ROLLOUT,
        package=SERVICE,
    ),
    Mutation(
        "roll-out: a revision that failed without engines takes the place of the former",
        "rollout",
        "return asleep and bool(new) and not any(revision.is_there for revision in new)",
        "return asleep and bool(new)",
        ROLLOUT,
        package=SERVICE,
    ),
    Mutation(
        "in place: former engines end before the new ones are ready",
        "rollout_in_place",
        "return pool.wanted.ready >= pool.replicas - former",
        "return True",
        IN_PLACE,
        package=SERVICE,
    ),
    Mutation(
        "in place: former engines of one pool stay without partners",
        "rollout_in_place",
        "if alone and not _work_together(pools):",
        "if False:",
        IN_PLACE,
        package=SERVICE,
    ),
    Mutation(
        "budget: a pod that drains holds no GPU",
        "budget",
        "return max(there, sum(asked.values()) + surge) + counted.draining",
        "return max(there, sum(asked.values()) + surge)",
        BUDGET,
        package=SERVICE,
    ),
    Mutation(
        "budget: new engines do not wait for GPUs",
        "budget",
        "new = min(more, max(0, left) // gpus) if more > 0 and gpus else more",
        "new = more",
        BUDGET,
        package=SERVICE,
    ),
    Mutation(
        "budget: the same GPUs are given to both pools",
        "budget",
        "            left -= gpus * max(0, new)\n",
        "",
        BUDGET,
        package=SERVICE,
    ),
    Mutation(
        "budget: engines of the former mode hold no GPU",
        "budget",
        "return self.gpus - self.former_gpus",
        "return self.gpus",
        BUDGET,
        package=SERVICE,
    ),
    Mutation(
        "budget: a pod is replaced where there is room for one of two",
        "budget",
        "elif is_replaced and 2 * gpus <= left:",
        "elif is_replaced and gpus <= left:",
        BUDGET,
        package=SERVICE,
    ),
    Mutation(
        "status: a paused service without its Kubernetes Service is ready",
        "status",
        "front = () if writes else (front_in_place(observed),)",
        "front = ()",
        STATUS,
        package=SERVICE,
    ),
    Mutation(
        "status: a refused service without its Kubernetes Service is ready",
        "status",
        "serves((front_in_place(observed), *ready.values(), paired_in_place(observed)), why)",
        "serves((*ready.values(), paired_in_place(observed)), why)",
        STATUS,
        package=SERVICE,
    ),
    Mutation(
        "status: what was refused is the generation in use",
        "status",
        "if refused is None and not plan.paused:",
        "if not plan.paused:",
        STATUS,
        package=SERVICE,
    ),
    Mutation(
        "status: a generation is complete at once",
        "status",
        'completed = generation if checks[UPDATED].is_true else before.get("completedGeneration")',
        "completed = generation",
        STATUS,
        package=SERVICE,
    ),
    Mutation(
        "progress: a Deployment is complete before its controller has seen it",
        "deployments",
        "complete=seen and all(count == wanted for count in counts),",
        "complete=all(count == wanted for count in counts),",
        ("test_deployments",),
        package="operator/conditions",
    ),
    Mutation(
        "progress: an engine that loads its model is late",
        "deployments",
        "return reached.deadline_exceeded and not any(map(is_loading, pods))",
        "return reached.deadline_exceeded",
        ("test_deployments", "../pool/test_pool_status"),
        package="operator/conditions",
    ),
    Mutation(
        "progress: engines of the former revision count as ready ones of the new",
        "status",
        "current = [pod for pod in pods if revision_of(pod) == plan.revision]",
        "current = pods",
        ("test_pool_status",),
        package="operator/pool",
    ),
)
