"""Lines of the operator's roll-outs, of their budget and of what its status says, each with a way
to break it."""

from __future__ import annotations

from typing import Final

from tests.mutation.mutation import Mutation

SERVICE: Final = "operator/service"
ROLLOUTS: Final = "operator/service/rollout"
RESOLVE: Final = "operator/service/resolve"
REPORT: Final = "operator/service/report"
ROLLOUT: Final = ("test_surge",)
IN_PLACE: Final = ("test_in_place",)
MODE_SWITCH: Final = ("test_mode_switch",)
BUDGET: Final = ("test_gpu_budget",)
STATUS: Final = ("test_service_status",)
APPLY: Final = "operator/apply"
REFUSED: Final = ("test_refused_writes",)
LAST_APPLIED: Final = ("test_last_applied",)
CARRIED_OUT: Final = ("resolve/test_last_applied",)

OPERATOR_MUTATIONS: Final = (
    Mutation(
        "apply: pods do not wait for what they need",
        "applier",
        "or (of.kind in _MAKE_PODS and self._lacks_what_pods_need())",
        "or False",
        REFUSED,
        package=APPLY,
    ),
    Mutation(
        "apply: pods end although what replaces them is refused",
        "applier",
        "or (live is not None and self.is_behind(of.kind) and is_less(desired, live))",
        "or False",
        REFUSED,
        package=APPLY,
    ),
    Mutation(
        "apply: what is deleted may have no replacement",
        "applier",
        "if not run.is_behind(reference.kind.kind):",
        "if True:",
        REFUSED,
        package=APPLY,
    ),
    Mutation(
        "apply: a failure is a refusal at once",
        "executor",
        "return self.refused.passing is None or lasts",
        "return True",
        REFUSED,
        package=APPLY,
    ),
    Mutation(
        "apply: a webhook that numbers its answers is told of with each",
        "executor",
        "latest = refused._replace(error=self.refused.error) if same else refused",
        "latest = refused",
        REFUSED,
        package=APPLY,
    ),
    Mutation(
        "roll-out: an engine that is ready for an instant counts",
        "revisions",
        "replace(desired, ready=desired.available, fingerprint",
        "replace(desired, fingerprint",
        ("test_revisions",),
        package=ROLLOUTS,
    ),
    Mutation(
        "refused spec: numbers are taken that make other pods",
        "last_applied",
        "if spec_hash(changed) != spec_hash(spec):",
        "if spec_hash(changed) == '':",
        LAST_APPLIED,
        package=RESOLVE,
    ),
    Mutation(
        "refused spec: a typo ends a download",
        "planned_spec",
        'and not (delivery.manifests and child["kind"] == JOB.kind)',
        'and child["kind"] != JOB.kind',
        LAST_APPLIED,
        package=RESOLVE,
    ),
    Mutation(
        "refused spec: nobody scales where a write has failed",
        "reconcile",
        "self.autoscaling.service_seen(key, scaled)  # what serves is scaled all the same",
        "pass",
        CARRIED_OUT,
        package=SERVICE,
    ),
    Mutation(
        "roll-out: it is complete with fewer engines than are asked for",
        "surge",
        "self.desired.settled and self.desired.replicas == self.replicas",
        "self.desired.settled",
        ROLLOUT,
        package=ROLLOUTS,
    ),
    Mutation(
        "roll-out: a partner goes without which a stable revision serves no longer",
        "surge",
        "return any(kept) and not all(kept)",
        "return False",
        ROLLOUT,
        package=ROLLOUTS,
    ),
    Mutation(
        "roll-out: the former revision goes before the new one is noted",
        "surge",
        "if complete and stable == desired:",
        "if complete:",
        ROLLOUT,
        package=ROLLOUTS,
    ),
    Mutation(
        "roll-out: one pool is complete without the other",
        "surge",
        "return shown and all(pool.is_complete or pool.is_asleep for pool in pools)",
        "return shown",
        ROLLOUT,
        package=ROLLOUTS,
    ),
    Mutation(
        "roll-out: nothing that serves is kept beside the stable revision",
        "surge",
        "    _keep_serving(pools, shares)\n",
        "",
        ROLLOUT,
        package=ROLLOUTS,
    ),
    Mutation(
        "roll-out: the stable revision grows with the wanted one",
        "surge",
        "return pool.replicas if stopped or not before else min(before, pool.replicas)",
        "return pool.replicas",
        ROLLOUT,
        package=ROLLOUTS,
    ),
    Mutation(
        "roll-out: a revision that has stopped may have no engine to show that it works",
        "surge",
        "return min(pool.replicas, max(1, before))",
        "return min(pool.replicas, before)",
        ROLLOUT,
        package=ROLLOUTS,
    ),
    Mutation(
        "in place: former engines end before the new ones are ready",
        "in_place",
        "return pool.desired.ready >= pool.replicas - former",
        "return True",
        IN_PLACE,
        package=ROLLOUTS,
    ),
    Mutation(
        "in place: the last former engine ends for one that has failed",
        "in_place",
        "if left and _planned(new) and not new.stopped:",
        "if True:",
        IN_PLACE,
        package=ROLLOUTS,
    ),
    Mutation(
        "in place: a smaller pool ends ready engines for former ones that are not",
        "in_place",
        "return min(engines, pool.replicas, max(serving, pool.replicas - ready))",
        "return min(engines, pool.replicas)",
        IN_PLACE,
        package=ROLLOUTS,
    ),
    Mutation(
        "mode switch: a pool that sleeps has come up while former engines serve",
        "mode_switch",
        "return not serves or spec.pool(pool.role).autoscaling is None",
        "return True",
        MODE_SWITCH,
        package=ROLLOUTS,
    ),
    Mutation(
        "mode switch: former engines end while the new ones are not ready",
        "mode_switch",
        "return NO_FORMER if has_moved and is_left else Former(former)",
        "return NO_FORMER if has_moved else Former(former)",
        MODE_SWITCH,
        package=ROLLOUTS,
    ),
    Mutation(
        "in place: former engines of one pool stay without partners",
        "in_place",
        "if alone and not _work_together(pools):",
        "if False:",
        IN_PLACE,
        package=ROLLOUTS,
    ),
    Mutation(
        "budget: a pod that drains holds no GPU",
        "gpu_budget",
        "return max(there, sum(replicas.values()) + surge) + counted.draining",
        "return max(there, sum(replicas.values()) + surge)",
        BUDGET,
        package=ROLLOUTS,
    ),
    Mutation(
        "budget: new engines do not wait for GPUs",
        "gpu_budget",
        "new = min(more, max(0, left) // gpus) if more > 0 and gpus else more",
        "new = more",
        BUDGET,
        package=ROLLOUTS,
    ),
    Mutation(
        "budget: the same GPUs are given to both pools",
        "gpu_budget",
        "            left -= gpus * max(0, new)\n",
        "",
        BUDGET,
        package=ROLLOUTS,
    ),
    Mutation(
        "budget: engines of the former mode hold no GPU",
        "gpu_budget",
        "return self.gpus - self.former_gpus",
        "return self.gpus",
        BUDGET,
        package=ROLLOUTS,
    ),
    Mutation(
        "budget: a pod is replaced where there is room for one of two",
        "gpu_budget",
        "elif is_replaced and 2 * gpus <= left:",
        "elif is_replaced and gpus <= left:",
        BUDGET,
        package=ROLLOUTS,
    ),
    Mutation(
        "status: a paused service without its Kubernetes Service is ready",
        "status",
        "fronts = () if is_made else (_front(observed.service, observed.children),)",
        "fronts = ()",
        STATUS,
        package=REPORT,
    ),
    Mutation(
        "status: a service whose Kubernetes Service is refused is ready",
        "status",
        "fronts = () if is_made else (_front(observed.service, observed.children),)",
        "fronts = () if front in map(identity, plan.apply) else "
        "(_front(observed.service, observed.children),)",
        STATUS,
        package=REPORT,
    ),
    Mutation(
        "status: what was refused is the generation in use",
        "status",
        "if _is_accepted(plan) and not plan.paused and not any(r.keeps_pods for r in refused):",
        "if _is_accepted(plan) and not plan.paused:",
        STATUS,
        package=REPORT,
    ),
    Mutation(
        "status: a generation is complete at once",
        "status",
        'completed = generation if checks[UPDATED].is_true else before.get("completedGeneration")',
        "completed = generation",
        STATUS,
        package=REPORT,
    ),
    Mutation(
        "progress: a Deployment is complete before its controller has seen it",
        "deployments",
        "complete=seen and all(count == replicas for count in counts),",
        "complete=all(count == replicas for count in counts),",
        ("test_deployments",),
        package="operator/conditions",
    ),
    Mutation(
        "progress: an engine that loads its model is late",
        "deployments",
        "return reached.deadline_exceeded and not waits",
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
    Mutation(
        "status: a pod in a queue excuses those that fail",
        "deployments",
        "all(is_gated(pod) or makes_progress(pod, since) for pod in unready)",
        "any(is_gated(pod) or makes_progress(pod, since) for pod in unready)",
        ("test_deployments",),
        package="operator/conditions",
    ),
)
