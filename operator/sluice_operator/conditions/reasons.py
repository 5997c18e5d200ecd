"""The reasons of Ready and Updated that several modules use, and what they mean.

Other reasons are defined next to their only check.
"""

from __future__ import annotations

from typing import Final

SERVING: Final = "Serving"
"""Reason of Ready where it is True."""
ALL_READY: Final = "AllReady"
"""Reason of Updated where it is True and engines are asked for."""
SCALED_TO_ZERO: Final = "ScaledToZero"
APPLYING: Final = "Applying"
STARTING: Final = "Starting"
ROLLING_OUT: Final = "RollingOut"
"""The former revision still serves."""
ROLLOUT_HALTED: Final = "RolloutHalted"
"""Reason of Progressing: what is new fails, and what was there before keeps serving."""
CANARY_STEP: Final = "CanaryStep"
"""Reason of Progressing: a new revision has the share of its step, and is judged."""
CANARY_STALLED: Final = "CanaryStalled"
"""Reason of Progressing: a step has had no verdict for ten times its minutes, as too few requests
were counted, or too many of them failed with both revisions."""
CANARY_WAITS: Final = "CanaryWaits"
"""Reason of Progressing: a new revision has the share of its step, and only a person promotes
it."""
CANARY_ASLEEP: Final = "CanaryAsleep"
"""A canary's pool has no engines, so its step goes on once the pool has some."""
CANARY_WORSE: Final = "CanaryWorse"
"""The operator has found a canary worse than what was there before: it has ended, or stays with its
share."""
CANARY_UNDECIDED: Final = frozenset({CANARY_STEP, CANARY_STALLED, CANARY_WAITS})
"""Reasons while a canary has the share of its step, and no verdict yet."""
CANARY_AT_STEP: Final = CANARY_UNDECIDED | {CANARY_WORSE}
"""Reasons of a roll-out whose canary has the share of its step, or was found worse there."""
CANARY_LATE: Final = "CanaryLate"
"""Engines of a canary were not ready in time, and what was there before has all requests."""
CANARY_ABORTED: Final = "CanaryAborted"
"""A person has ended a canary, and what was there before has all requests."""
RESOLVING: Final = "ResolvingModel"
FETCHING: Final = "FetchingModel"
"""Engines are made once the model is there."""
PAUSED: Final = "Paused"
EDITED: Final = "Edited"
"""Somebody has edited a pool, and its service has not reverted that yet."""
TAKING_OVER: Final = "TakingOver"
"""Children have lost their owner references, and will get them back."""
NOT_OWNED: Final = "NotOwned"
"""Pods answer for the service although nothing of the service controls them, so it cannot end
them."""
NAME_TAKEN: Final = "NameTaken"
APPLY_FAILED: Final = "ApplyFailed"
"""The API server refuses a child, or has failed over it for long."""
REWRITTEN: Final = "Rewritten"
"""Another manager writes fields of a child again after each repair."""
PROGRESS_DEADLINE_EXCEEDED: Final = "ProgressDeadlineExceeded"
"""Deadline reason, named as in the conditions of Deployments."""
CLAIMS_NOT_SERVED: Final = "ClaimsNotServed"
"""The API server takes no ResourceClaims of pods: their engines come without devices."""
POD_REFUSED: Final = "PodRefused"
"""The API server refuses the pods of a Job, as by a quota or an admission webhook."""
VOLUMES_NOT_MOUNTED: Final = "VolumesNotMounted"
"""Kubelet has not mounted the volumes of a pod, or made its network, in time."""
REPLICA_FAILURE: Final = "ReplicaFailure"
"""The API server refuses pods of a Deployment, whose condition says so."""
PODS_NOT_LEAVING: Final = "PodsNotLeaving"
"""Engines wait for GPUs of the budget, and pods hold them that should have left."""

HEALTHY: Final = frozenset(
    {
        ALL_READY, SCALED_TO_ZERO, APPLYING, STARTING, ROLLING_OUT, CANARY_ASLEEP, PAUSED, EDITED,
        RESOLVING, FETCHING, TAKING_OVER,
    }
)  # fmt: skip
"""Expected in normal operation; all others cause a warning event. (The event about an edit is
recorded when it is reverted.)"""
STALLING: Final = frozenset(
    {APPLY_FAILED, PROGRESS_DEADLINE_EXCEEDED, CLAIMS_NOT_SERVED, POD_REFUSED, PODS_NOT_LEAVING}
)
"""Reasons that need a person, whatever the other conditions say."""
