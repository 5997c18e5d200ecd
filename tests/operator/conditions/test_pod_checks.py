"""Why a pod is not ready, as kubelet and scheduler leave it in its status."""

from __future__ import annotations

from typing import Any

import pytest
from sluice_contract.cluster.termination import TerminationMessage
from sluice_operator.api.base import SecretKeyRef
from sluice_operator.conditions.pods import (
    failure_of,
    first_failure,
    is_draining,
    is_ready,
    is_unschedulable,
    missing_claim,
)
from sluice_operator.kube.kinds import Manifest
from sluice_operator.manifests.fetching import token_volumes


def _pod(name: str = "chat-0", **status: Any) -> Manifest:
    gates = [{"name": "kueue.x-k8s.io/admission"}]
    return {"metadata": {"name": name}, "spec": {"schedulingGates": gates}, "status": status}


def _container(**state: Any) -> dict[str, Any]:
    container = {"name": "engine", "image": "sluice/engine:1", "ready": False, **state}
    return {"containerStatuses": [container]}


def _ended(**terminated: Any) -> dict[str, Any]:
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    return _container(state=waiting, lastState={"terminated": terminated})


DIED = TerminationMessage(reason="EngineDied", message="ended by SIGKILL (out of memory?)")
TOLD = TerminationMessage(reason="ModelLoadFailed", message="model.safetensors: truncated")

NO_MODEL = TerminationMessage(reason="NotAModel", message="no config.json in the image")


def _init(**state: Any) -> dict[str, Any]:
    """An init container beside an engine that waits for it."""
    first = {"name": "copy-model", "image": "model:1", "ready": False, **state}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    return {"initContainerStatuses": [first], **_container(state=waiting)}


FAILURES: dict[str, tuple[dict[str, Any], str, str]] = {
    "unschedulable": (
        {
            "conditions": [
                {
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
                }
            ]
        },
        "Unschedulable",
        "3 Insufficient nvidia.com/gpu",
    ),
    "scheduling gate": (
        {
            "conditions": [
                {
                    "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
                    "message": "Scheduling is blocked due to non-empty scheduling gates",
                }
            ]
        },
        "SchedulingGated",
        "waits for its scheduling gates: kueue.x-k8s.io/admission",
    ),
    "image": (
        _container(state={"waiting": {"reason": "ErrImagePull", "message": "no such\nimage"}}),
        "ImagePullBackOff",
        "no such image",
    ),
    "image without a message": (
        _container(state={"waiting": {"reason": "ImagePullBackOff"}}),
        "ImagePullBackOff",
        "sluice/engine:1",
    ),
    "image of a model": (
        _init(state={"waiting": {"reason": "ErrImagePull", "message": "no model:1"}}),
        "ImagePullBackOff",
        "no model:1",
    ),
    "image without a model, which waits": (
        _init(
            state={"running": {}},
            lastState={"terminated": {"exitCode": 2, "message": NO_MODEL.to_bytes().decode()}},
        ),
        "NotAModel",
        "no config.json",
    ),
    "image name": (
        _container(state={"waiting": {"reason": "InvalidImageName"}}), "InvalidImageName", "",
    ),
    "config": (
        _container(
            state={"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}}
        ),
        "CreateContainerConfigError",
        "no secret",
    ),
    "told": (
        _ended(exitCode=1, message=TOLD.to_bytes().decode()),
        "ModelLoadFailed",
        "model.safetensors: truncated",
    ),
    "told, not restarted yet": (
        _container(state={"terminated": {"exitCode": 1, "message": TOLD.to_bytes().decode()}}),
        "ModelLoadFailed",
        "truncated",
    ),
    "memory": (_ended(exitCode=137, reason="OOMKilled"), "OOMKilled", "more memory"),
    "memory of one process, of which the other told": (
        _ended(exitCode=1, reason="OOMKilled", message=DIED.to_bytes().decode()),
        "OOMKilled",
        "more memory than its limit",
    ),
    "a process died": (
        _ended(exitCode=1, reason="Error", message=DIED.to_bytes().decode()),
        "EngineDied",
        "SIGKILL",
    ),
    "crash": (
        _ended(exitCode=3, message="Traceback\nboom"), "CrashLoopBackOff", "code 3: Traceback boom",
    ),
    "crash without a word": (_ended(exitCode=3), "CrashLoopBackOff", "exited with code 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_is_told_with_reason_and_message(case: str) -> None:
    status, reason, message = FAILURES[case]
    failure = failure_of(_pod(**status))
    assert failure is not None
    assert (failure.pod, failure.reason) == ("chat-0", reason)
    assert message in failure.message
    assert "\n" not in failure.message


def test_a_gated_pod_names_the_queue_that_it_waits_for() -> None:
    pod = _pod(**FAILURES["scheduling gate"][0])
    pod["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "gpus"}
    failure = failure_of(pod)
    assert failure is not None
    assert failure.message.endswith("kueue.x-k8s.io/admission (queue gpus)")
    assert not failure.lasting
    assert not failure.halts
    pod["spec"]["schedulingGates"] = [{"name": "example.com/licence"}]
    failure = failure_of(pod)
    assert failure is not None
    assert failure.message.endswith("gates: example.com/licence"), "it is not Kueue that waits"


CLAIMS = [{"name": "accelerator", "resourceClaimTemplateName": "two-gpus"}]
MADE = [{"name": "accelerator", "resourceClaimName": "chat-0-accelerator-x"}]


def test_an_unplaced_pod_names_the_template_of_its_devices() -> None:
    pod = _pod(**FAILURES["unschedulable"][0])
    pod["spec"]["resourceClaims"] = CLAIMS
    failure = failure_of(pod)
    assert failure is not None
    assert failure.message.startswith(
        "no node takes it, with devices of ResourceClaimTemplate two-gpus (0/3 nodes"
    )


@pytest.mark.parametrize(
    ("status", "missing"),
    [
        ({"phase": "Pending"}, True),
        ({"resourceClaimStatuses": [{"name": "accelerator"}]}, True),
        ({"resourceClaimStatuses": MADE}, False),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, False),
    ],
)
def test_a_pod_without_its_claim_has_no_place_and_is_no_failure(
    status: dict[str, Any], missing: bool
) -> None:
    """The scheduler says nothing of a pod whose template is missing."""
    pod = _pod(**status)
    assert missing_claim([pod]) == ""
    pod["spec"]["resourceClaims"] = CLAIMS
    assert ("pod chat-0 has no ResourceClaim" in missing_claim([pod])) is missing
    assert is_unschedulable(pod) is missing
    assert failure_of(pod) is None


def test_out_of_memory_names_the_limit_of_the_container() -> None:
    containers = [{"name": "other"}, {"name": "engine", "resources": {"limits": {"memory": "2Gi"}}}]
    pod = _pod(**_ended(exitCode=137, reason="OOMKilled")) | {"spec": {"containers": containers}}
    failure = failure_of(pod)
    assert failure is not None
    assert failure.message == "container engine used more memory than its limit of 2Gi"


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"phase": "Pending"},
        _container(state={"waiting": {"reason": "ContainerCreating"}}),
        _container(state={"running": {}}),
        {"phase": "Failed", "reason": "Evicted"},
        {"conditions": [{"type": "Ready", "status": "True"}], **_ended(exitCode=1)},
    ],
)
def test_what_starts_or_runs_or_is_over_is_no_failure(status: dict[str, Any]) -> None:
    assert failure_of(_pod(**status)) is None


def test_a_pod_that_is_going_is_neither_ready_nor_failing() -> None:
    going = _pod(conditions=[{"type": "Ready", "status": "True"}])
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert is_draining(going)
    assert not is_ready(going)
    assert failure_of(going) is None


def test_the_lasting_failure_is_told_first() -> None:
    waiting = _pod("a", **FAILURES["unschedulable"][0])
    broken = _pod("b", **FAILURES["told"][0])
    found = first_failure([waiting, broken])
    assert found is not None
    assert (found.pod, found.lasting) == ("b", True)


def test_one_that_waits_for_its_gates_is_told_last() -> None:
    waiting = _pod("a", **FAILURES["scheduling gate"][0])
    found = first_failure([waiting, _pod("b", **FAILURES["crash"][0])])
    assert found is not None
    assert found.pod == "b"
    found = first_failure([waiting])
    assert found is not None
    assert found.reason == "SchedulingGated"


def test_else_the_first_pod_by_name() -> None:
    pods = [_pod(name, **FAILURES["crash"][0]) for name in ("b", "a")]
    found = first_failure(pods)
    assert found is not None
    assert found.pod == "a"


def test_a_claim_that_is_not_there_is_told_once() -> None:
    message = '0/1 nodes are available: persistentvolumeclaim "models" not found. not found'
    failure = failure_of(
        _pod(
            conditions=[
                {
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                    "message": message,
                }
            ]
        )
    )  # fmt: skip
    assert failure is not None
    said = message.removesuffix(". not found")
    assert failure.message == f"no node takes it ({said})"


def test_what_the_scheduler_says_of_preemption_is_left_out() -> None:
    noise = ", no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is"
    message = f"0/1 nodes are available: 1 Insufficient nvidia.com/gpu{noise} not helpful."
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    failure = failure_of(_pod(conditions=[unplaced | {"message": message}]))
    assert failure is not None
    assert failure.message == (
        "no node takes it (0/1 nodes are available: 1 Insufficient nvidia.com/gpu)"
    )


def test_an_engines_own_download_without_a_token_names_its_secret() -> None:
    told = TerminationMessage(reason="TokenMissing", message="--token-file: there is no /etc/x")
    ended = {"exitCode": 1, "message": told.to_bytes().decode()}
    token = SecretKeyRef(name="hub", key="token")
    pod = _pod(**_init(state={"terminated": ended})) | {"spec": {"volumes": token_volumes(token)}}
    failure = failure_of(pod)
    assert failure is not None
    assert failure.message.endswith("there is no Secret hub with the key token")


@pytest.mark.parametrize(("reason", "code"), [("NoSpace", 2), ("HubUnreachable", 1)])
def test_a_process_says_by_its_code_whether_another_start_helps(reason: str, code: int) -> None:
    told = TerminationMessage(reason=reason, message="why")
    ended = {"exitCode": code, "message": told.to_bytes().decode()}
    failure = failure_of(_pod(**_init(state={"terminated": ended})))
    assert failure is not None
    assert (failure.reason, failure.lasting) == (reason, code == 2)


@pytest.mark.parametrize(("reason", "lasting"), [("OutOfMemory", True), ("EngineCrashed", False)])
def test_only_what_waiting_does_not_cure_is_lasting(reason: str, lasting: bool) -> None:
    told = TerminationMessage(reason=reason, message="no room").to_bytes().decode()
    failure = failure_of(_pod(**_ended(exitCode=1, message=told)))
    assert failure is not None
    assert (failure.reason, failure.lasting) == (reason, lasting)
