"""Downloads that fail, wait or cannot begin: what is named, and what is tried again."""

from __future__ import annotations

import pytest
from sluice_operator.conditions.conditions import find

from tests.operator.delivery.world import (
    CACHED,
    HUB,
    World,
)
from tests.operator.model_pods import COMMIT, resolved, said

FAILURES = ["RepositoryNotFound", "RevisionNotFound", "AccessDenied", "NotAModel"]
REFUSED = 'pods "a" is forbidden: failed quota: team: must specify limits.cpu for: fetch-model'


@pytest.mark.parametrize("reason", FAILURES)
def test_a_failure_is_named_and_stays_until_the_spec_changes(reason: str) -> None:
    world = World({"model": HUB})
    world.reconcile()
    failed = world.job()["metadata"]["name"]
    world.ends(2, said(reason, "why it failed"))
    plan = world.reconcile()
    assert (plan.apply, plan.prune) == ((), ()), "the Job stays as it is: nothing is tried again"
    for kind in ("Ready", "Updated", "ModelAvailable"):
        assert world.condition(kind) == ("False", reason)
    assert world.condition("Stalled") == ("True", reason)
    assert "why it failed" in (find(world.status, "Ready") or {})["message"]
    before = world.status
    world.reconcile()
    assert world.status == before
    world.edit(refresh="2")
    world.reconcile()
    assert world.job()["metadata"]["name"] != failed
    assert world.condition("Updated") == ("False", "ResolvingModel")


def test_what_may_pass_is_named_and_tried_again() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(1, said("HubUnreachable", "no connection"))
    world.reconcile()
    assert world.condition("ModelAvailable") == ("False", "HubUnreachable")
    message = (find(world.status, "ModelAvailable") or {})["message"]
    assert message.startswith("no connection; failed once, tried again within 10 minutes. ")
    assert "SLUICE_HUB_ENDPOINT" in message
    assert world.condition("Stalled")[0] == "False"
    world.ends(0, resolved())
    world.reconcile()
    assert world.status["model"]["commit"] == COMMIT


@pytest.mark.parametrize(
    ("code", "reason", "told", "shown"),
    [
        (1, "TokenMissing", "there is no /etc/x", "there is no Secret hub with the key token"),
        (2, "InvalidConfig", "/etc/x holds no token", "Secret hub, key token: /etc/x holds no"),
    ],
)
def test_what_is_wrong_with_a_token_names_its_secret_and_key(
    code: int, reason: str, told: str, shown: str
) -> None:
    world = World({"model": HUB | {"tokenSecretRef": {"name": "hub", "key": "token"}}})
    world.reconcile()
    world.ends(code, said(reason, f"--token-file: {told}"))
    world.reconcile()
    message = (find(world.status, "ModelAvailable") or {})["message"]
    assert f"spec.model.tokenSecretRef: {shown}" in message
    assert world.condition("ModelAvailable") == ("False", reason)


def test_a_job_that_has_given_up_is_a_failure() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(1, said("HubUnreachable", "no connection"))
    job = world.job()
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimit"}]}
    world.reconcile()
    assert world.condition("Stalled") == ("True", "HubUnreachable")


def test_a_job_whose_pods_are_gone_is_made_again() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.job()["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    world.reconcile()
    assert "Job" not in world.kinds()
    world.reconcile()
    assert "Job" in world.kinds()


def test_what_keeps_a_job_from_starting_is_named() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(0, "")
    world.pods[0]["status"] = {
        "phase": "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
        ],
    }
    world.reconcile()
    assert world.condition("ModelAvailable") == ("False", "Unschedulable")
    assert world.condition("Stalled")[0] == "False"


def test_a_job_without_a_pod_is_named() -> None:
    world = World({"model": HUB})
    for _ in range(2):
        world.reconcile()
    message = (find(world.status, "ModelAvailable") or {})["message"]
    assert message.endswith(f"Job {world.job()['metadata']['name']} has no pod yet.")
    world.ends(0, "")
    world.pods[0]["status"] = {"phase": "Running"}
    world.reconcile()
    assert "no pod" not in (find(world.status, "ModelAvailable") or {})["message"]


@pytest.mark.parametrize("served", [False, True], ids=["nothing serves", "another model serves"])
def test_a_job_whose_pod_is_refused_needs_a_person_until_it_is_not(served: bool) -> None:
    world = World({"model": {"uri": "dummy://a"} if served else HUB})
    world.reconcile()
    world.edit(**HUB)
    world.reconcile()
    world.refused = REFUSED
    world.reconcile()
    says = f"Job {world.job()['metadata']['name']} gets no pod: {REFUSED}"
    stalled, *others = (
        find(world.status, kind) or {} for kind in ("Stalled", "ModelAvailable", "Updated")
    )
    assert (stalled["status"], stalled["reason"]) == ("True", "PodRefused")
    assert world.condition("Progressing") == ("False", "PodRefused")
    assert world.condition("Reconciling")[0] == "False"
    for condition in others:
        assert (condition["status"], condition["reason"]) == ("False", "PodRefused")
    assert all(says in condition["message"] for condition in (stalled, *others))
    world.refused = ""
    world.reconcile()
    assert world.condition("Stalled")[0] == "False"
    assert world.condition("ModelAvailable") == ("False", "ResolvingModel")


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_refusal_is_told_before_what_attempts_have_said(attempts: int) -> None:
    world = World({"model": HUB}, refused=REFUSED)
    world.reconcile()
    for _ in range(attempts):
        world.ends(1, said("HubUnreachable", "no route"))
    world.reconcile()
    assert world.condition("Stalled") == ("True", "PodRefused")
    world.ends(2, said("AccessDenied", "gated"))
    world.reconcile()
    assert world.condition("Stalled") == ("True", "AccessDenied"), "no pod comes after that"


def test_a_job_that_somebody_suspends_is_told_and_not_given_up() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.job()["spec"]["suspend"] = True
    plan = world.reconcile()
    message = (find(world.status, "ModelAvailable") or {})["message"]
    assert world.condition("ModelAvailable") == ("False", "JobSuspended")
    assert message == f"Job {world.job()['metadata']['name']} is suspended, and has no pod."
    assert world.condition("Stalled")[0] == "False"
    assert world.condition("Progressing") == ("False", "JobSuspended")
    assert all("suspend" not in manifest.get("spec", {}) for manifest in plan.apply)


def test_a_pod_that_dies_without_a_word_is_told_by_its_code() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(137, "Traceback\n  killed")
    world.reconcile()
    message = (find(world.status, "ModelAvailable") or {})["message"]
    assert (
        message
        == "exited with code 137: Traceback killed; failed once, tried again within 10 minutes."
    )


def test_an_answer_that_is_not_understood_is_a_failure() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(0, said("ModelResolved", "of another release"))
    world.reconcile()
    assert world.condition("Stalled") == ("True", "FetcherMismatch")


def test_the_pod_of_another_job_says_nothing() -> None:
    world = World({"model": HUB})
    world.reconcile()
    world.ends(2, said("AccessDenied", "of before"))
    world.pods[0]["metadata"]["ownerReferences"][0]["uid"] = "another"
    world.reconcile()
    assert world.condition("ModelAvailable") == ("False", "ResolvingModel")


def test_a_volume_that_is_full_is_named_and_a_refresh_tries_the_download_again() -> None:
    world = World({"model": CACHED})
    world.reconcile()
    world.ends(0, resolved())
    world.reconcile()
    world.reconcile()
    full = world.job()["metadata"]["name"]
    world.ends(2, said("NoSpace", "16.4 GB are missing, 2.0 GB are free"))
    world.reconcile()
    assert world.condition("Ready") == ("False", "NoSpace")
    assert world.condition("Stalled") == ("True", "NoSpace")
    world.edit(cache={"size": "40Gi"}, refresh="larger")
    world.reconcile()
    world.ends(0, resolved())
    world.reconcile()
    world.reconcile()
    assert world.job()["metadata"]["name"] != full
