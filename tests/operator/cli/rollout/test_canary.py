"""A person promotes and aborts canaries: what the engines, the shares and the status do then, also
when the operator is killed meanwhile."""

from __future__ import annotations

import json

import pytest
from sluice_contract.cluster.labels import CANARY
from sluice_operator.cli.rollout.canary import (
    CanaryNow,
    NoCanaryError,
    all_requests,
    next_step,
    no_requests,
)
from sluice_operator.cli.rollout.progress import as_text, progress_of
from sluice_operator.cli.rollout.session import Session
from sluice_operator.cli.rollout.undo import target, undone
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    DEPLOYMENT,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    SERVICE,
)
from sluice_operator.service.revisions.canary_state import CanaryState
from sluice_operator.service.revisions.revision import DECISION, STATE, Revision, State

from tests.operator.cli.rollout.person import STEPS, Decisions, Person, rolled
from tests.operator.examples import service
from tests.operator.harness.memory_cluster import running
from tests.operator.statuses import condition

pytestmark = pytest.mark.process


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_person_promotes_a_canary_step_by_step(restarts: bool) -> None:
    person = await rolled()
    assert (person.counts, person.label) == ((2, 4), f"{person.new}.{person.former}.25")
    assert person.progressing() == ("True", "CanaryStep")
    assert condition(person.cluster.status, "Ready")["status"] == "True"
    await person.decides(next_step, restarts)
    assert (person.counts, person.label) == ((4, 4), f"{person.new}.{person.former}.50")
    spec = person.cluster.api.objects[INFERENCE_SERVICE, "chat"]["spec"]
    assert spec["rollout"] == STEPS, "the spec is its user's"
    new = person.new
    await person.decides(next_step, restarts)
    assert (person.engines, person.label) == ({new: 4}, None)
    assert condition(person.cluster.status, "Updated")["status"] == "True"
    events = [event["reason"] for event in person.cluster.api.events]
    assert events.count("CanaryStep") == 2
    assert events.count("CanaryEnded") == 1
    with pytest.raises(NoCanaryError, match="no new revision"):
        await person.decides(no_requests)


async def test_two_pools_are_one_canary() -> None:
    cluster = await running(replicas=4, prefill={"replicas": 2}, rollout=STEPS)
    await cluster.edited(engine={"chunkSize": 64})
    person, pools = Decisions(cluster), ("chat-prefill", "chat-decode")
    objects = cluster.api.objects
    labels = [objects[SERVICE, pool]["metadata"]["labels"][CANARY] for pool in pools]
    shares = [objects[ENGINE_POOL, pool]["spec"]["revisions"] for pool in pools]
    assert labels == [f"{new['name']}.{former['name']}.25" for new, former in shares]
    assert [[share["replicas"] for share in each] for each in shares] == [[1, 2], [2, 4]]
    await person.decides(all_requests)
    assert [cluster.engines(pool) for pool in pools] == [2, 4]
    assert all(CANARY not in objects[SERVICE, pool]["metadata"]["labels"] for pool in pools)
    assert condition(cluster.status, "Updated")["status"] == "True"


async def test_of_two_pools_the_late_one_ends_the_canary_of_both() -> None:
    cluster = await running(replicas=4, prefill={"replicas": 2}, rollout=STEPS)
    former, services = cluster.names(DEPLOYMENT), ("chat-prefill", "chat-decode")
    cluster.is_down = lambda name: "-decode-" in name and name not in former
    await cluster.edited(engine={"chunkSize": 64})
    labels = [cluster.api.objects[SERVICE, name]["metadata"]["labels"] for name in services]
    assert [label[CANARY].rpartition(".")[2] for label in labels] == ["0", "0"]
    cluster.is_late = cluster.is_down
    await cluster.reconciled()
    assert condition(cluster.status, "Progressing")["reason"] == "CanaryLate"
    assert [cluster.engines(name) for name in ("chat-prefill", "chat-decode")] == [2, 4]
    sizes = {name: cluster.api.objects[DEPLOYMENT, name]["spec"]["replicas"] for name in former}
    assert 0 not in sizes.values(), "the former ones"


async def test_all_steps_can_be_skipped() -> None:
    person = await rolled()
    new = person.new
    await person.decides(all_requests)
    assert person.engines == {new: 4}


@pytest.mark.parametrize("restarts", [False, True])
async def test_an_aborted_canary_is_not_tried_again_until_it_is_promoted(restarts: bool) -> None:
    person = await rolled()
    await person.decides(next_step)
    await person.decides(no_requests, restarts)
    assert (person.counts, person.label) == ((0, 4), None)
    assert person.progressing() == ("False", "CanaryAborted")
    assert condition(person.cluster.status, "Reconciling")["status"] == "False"
    assert condition(person.cluster.status, "Ready")["status"] == "True"
    events = [event["reason"] for event in person.cluster.api.events]
    assert (events.count("CanaryStep"), events.count("CanaryAborted")) == (2, 1)
    service = person.cluster.api.objects[INFERENCE_SERVICE, "chat"]
    assert progress_of(service).state == "Stopped"
    await person.cluster.edited(replicas=5)
    assert person.counts == (0, 5), "numbers are no other spec"
    with pytest.raises(NoCanaryError, match="ended already"):
        await person.decides(no_requests)
    await person.decides(next_step, restarts)
    assert (person.counts, person.label) == ((2, 5), f"{person.new}.{person.former}.25")


@pytest.mark.parametrize("is_promoted", [False, True])
async def test_an_undo_applies_the_former_spec_of_an_aborted_or_a_promoted_canary(
    is_promoted: bool,
) -> None:
    person = await rolled()
    person.cluster.is_down = lambda name: "-mixed-" in name and person.former not in name
    await person.cluster.reconciled()
    await person.decides(all_requests if is_promoted else no_requests)
    if is_promoted:
        assert person.counts == (4, 4)
        with pytest.raises(NoCanaryError, match="promoted; to go back: sluice rollout undo"):
            await person.decides(no_requests)
    session = Session(person.cluster.api, "default", "chat")  # type: ignore[arg-type]
    service, revisions = await session.service(), await session.revisions()
    spec = undone(service["spec"], target(service, revisions, None).spec)
    assert spec["rollout"] == STEPS
    await person.cluster.edited(engine=spec.get("engine", {}))
    assert (person.engines, person.label) == ({person.former: 4}, None)
    assert condition(person.cluster.status, "Updated")["status"] == "True"


@pytest.mark.parametrize(
    ("steps", "label", "text"),
    [
        ([1, 2, 5, 25, 30], 25, "step 5 of 5, 30 % of requests"),
        ([10, 50], 25, "step 3 of 3, 50 % of requests"),
        ([10], 10, "promoted to all requests"),
        ([50], 50, "promoted to all requests"),
    ],
)
async def test_a_canary_keeps_its_share_where_its_steps_are_edited(
    steps: list[int], label: int, text: str
) -> None:
    person = await rolled()
    await person.cluster.edited(rollout={"canary": {"steps": steps}})
    assert person.label == f"{person.new}.{person.former}.{label}"
    assert "CanarySame" not in [event["reason"] for event in person.cluster.api.events]
    writes = len(person.cluster.api.writes)
    await person.cluster.reconciled()
    assert len(person.cluster.api.writes) == writes
    await person.decides(next_step)
    assert person.text == text


@pytest.mark.parametrize("rollout", [{"strategy": "Surge"}, {}])
async def test_an_aborted_revision_gets_no_request_though_the_spec_has_no_canary_any_more(
    rollout: dict[str, str],
) -> None:
    person = await rolled()
    await person.decides(no_requests)
    await person.cluster.edited(rollout=rollout)
    assert (person.counts, person.label) == ((0, 4), None)
    assert person.progressing() == ("False", "CanaryAborted")
    with pytest.raises(NoCanaryError, match="ended already"):
        await person.decides(no_requests)
    new = person.new
    await person.decides(next_step)
    assert person.text == "promoted to all requests"
    assert (person.engines, person.label) == ({new: 4}, None)
    await person.cluster.edited(engine={"chunkSize": 128})
    assert new not in person.engines, "other engines are no canary"


async def test_a_canary_that_sleeps_is_not_complete_and_goes_on_with_engines() -> None:
    person = await rolled()
    complete = person.cluster.status["completedGeneration"]
    await person.cluster.edited(replicas=0)
    updated = condition(person.cluster.status, "Updated")
    assert (updated["status"], updated["reason"]) == ("False", "CanaryAsleep")
    assert person.progressing() == ("True", "CanaryAsleep")
    assert condition(person.cluster.status, "Ready")["reason"] == "ScaledToZero"
    assert person.cluster.status["completedGeneration"] == complete
    events = [event["reason"] for event in person.cluster.api.events if event["type"] == "Warning"]
    assert "CanaryAsleep" not in events
    with pytest.raises(NoCanaryError, match="step 1 is not reached"):
        await person.decides(next_step)
    await person.cluster.edited(replicas=4)
    assert (person.counts, person.progressing()) == ((2, 4), ("True", "CanaryStep"))


@pytest.mark.parametrize(("reached", "is_refused"), [(1, True), (2, False)])
def test_a_held_canary_is_not_promoted_below_its_step(reached: int, is_refused: bool) -> None:
    state = CanaryState(step=1, verdict="held", reached=reached, percent=(25, 40)[reached - 1])
    spec = service({"rollout": {"canary": {"steps": [25, 40, 50], "onWorse": "Hold"}}})["spec"]
    revision = Revision("r", 1, {"spec": spec}, State(canary=state))
    status = {"rollout": {"reason": "CanaryWorse", "message": "The canary is worse, and stays."}}
    now = CanaryNow({"status": status}, revision)
    if is_refused:
        with pytest.raises(NoCanaryError, match="step 2 is not reached"):
            next_step(now)
    else:
        assert next_step(now)[0].step == 2


async def test_an_abort_takes_the_requests_of_a_paused_service_and_leaves_the_engines() -> None:
    person = await rolled()
    await person.cluster.edited(paused=True)
    writes = len(person.cluster.api.writes)
    await person.decides(no_requests)
    assert (person.counts, person.label) == ((2, 4), f"{person.new}.{person.former}.0")
    assert (person.state.verdict, person.progressing()) == ("aborted", ("False", "CanaryAborted"))
    text = condition(person.cluster.status, "Updated")["message"]
    assert text.endswith(" Its engines stay, as spec.paused is true.")
    paths = [write.path.split("?")[0] for write in person.cluster.api.writes[writes:]]
    kinds = {path.split("/")[-2] for path in paths if not path.endswith("/status")}
    assert kinds == {"controllerrevisions", "services", "events"} & kinds
    writes = len(person.cluster.api.writes)
    await person.cluster.reconciled()
    assert len(person.cluster.api.writes) == writes
    await person.cluster.edited(paused=False)
    assert (person.counts, person.label) == ((0, 4), None)


async def test_a_promotion_waits_while_the_service_is_paused() -> None:
    person = await rolled()
    await person.cluster.edited(paused=True)
    await person.decides(next_step)
    assert (person.counts, person.label) == ((2, 4), f"{person.new}.{person.former}.25")
    await person.cluster.edited(paused=False)
    assert (person.counts, person.label) == ((4, 4), f"{person.new}.{person.former}.50")


async def test_another_spec_of_a_paused_service_is_not_written() -> None:
    person = await rolled()
    await person.cluster.edited(paused=True)
    before = [(kind, name) for kind, name in person.cluster.api.objects]
    await person.cluster.edited(engine={"chunkSize": 128})
    assert [(kind, name) for kind, name in person.cluster.api.objects] == before
    running = f"{person.new}.{person.former}"
    assert person.label == f"{running}.25"
    await person.decides(no_requests)
    assert person.counts == (2, 4)
    assert person.label == f"{running}.0", "what runs gets no request"


async def test_another_spec_after_an_aborted_one_is_a_canary_again() -> None:
    person = await rolled()
    first = person.new
    await person.decides(no_requests)
    await person.cluster.edited(engine={"chunkSize": 128})
    assert first not in person.engines
    assert person.counts == (2, 4)
    await person.cluster.edited(engine={"chunkSize": 64})
    assert person.counts == (2, 4), "tried again, as its user applied it again"
    await person.cluster.edited(engine={})
    assert (person.engines, person.label) == ({person.former: 4}, None)


async def test_an_undo_leaves_the_former_engines_all_requests_at_once() -> None:
    person = await rolled()
    person.cluster.is_down = lambda name: person.former in name
    await person.cluster.reconciled()
    labels = list[str | None]()
    runs = person.cluster.deployment_runs

    def deployment_runs(name: str) -> list[str]:
        labels.append(person.label)
        return runs(name)

    person.cluster.deployment_runs = deployment_runs  # type: ignore[method-assign]
    new, before = person.new, person.label
    await person.cluster.edited(engine={})
    serving = person.engines[new], person.label
    assert serving == (2, f"{person.former}.{person.former}.0"), "it stays, as no other one serves"
    events = person.cluster.api.events
    (ended,) = (event["note"] for event in events if event["reason"] == "CanaryEnded")
    assert ended.startswith(f"The canary of revision {new} is over: it gets no request. ")
    person.cluster.is_down = lambda name: False
    await person.cluster.reconciled()
    assert (person.engines, person.label) == ({person.former: 4}, None)
    after = [label for label in labels if label != before]
    assert after[0] == f"{person.former}.{person.former}.0", "before an engine leaves"


async def test_a_canary_whose_engines_are_late_is_halted_and_its_gpus_go_back() -> None:
    scaled = {"gpuBudget": 6, "minReplicas": 4, "maxReplicas": 6}
    spec = {"accelerator": {"count": 1}, "autoscaling": scaled, "rollout": STEPS}
    person = Person(await running(**spec))
    person.cluster.is_down = lambda name: "-mixed-" in name and person.former not in name
    await person.cluster.edited(engine={"chunkSize": 64})
    person.cluster.autoscaler_writes(6)
    await person.cluster.reconciled()
    assert (person.counts, person.progressing()) == ((2, 4), ("True", "WaitsForBudget"))
    person.cluster.is_late = person.cluster.is_down
    await person.cluster.reconciled()
    assert (person.counts, person.label) == ((0, 6), None)
    assert person.progressing() == ("False", "CanaryLate")
    assert condition(person.cluster.status, "Stalled")["reason"] == "CanaryLate"
    assert condition(person.cluster.status, "Progressing")["message"].startswith(
        "The canary has ended: its engines were not ready in time: all requests go to the former"
    )
    person.cluster.operator_starts()
    await person.cluster.reconciled()
    assert person.counts == (0, 6), "it stays so"


async def test_nothing_is_decided_before_the_operator_has_seen_the_spec() -> None:
    person = await rolled()
    person.cluster.api.edit(INFERENCE_SERVICE, "chat", {"engine": {"chunkSize": 128}})
    with pytest.raises(NoCanaryError, match="not looked at"):
        await person.decides(next_step)
    without = Person(await running(replicas=2))
    with pytest.raises(NoCanaryError, match=r"spec\.rollout\.canary is not set"):
        await without.decides(next_step)


async def test_a_lost_status_and_a_second_run_change_nothing() -> None:
    person = await rolled()
    await person.decides(next_step)
    before = (person.engines, person.label)
    for place in ((INFERENCE_SERVICE, "chat"), (ENGINE_POOL, "chat-mixed")):
        person.cluster.api.objects[place]["status"] = {}
    person.cluster.operator_starts()
    await person.cluster.reconciled()
    assert (person.engines, person.label) == before
    writes = len(person.cluster.api.writes)
    await person.cluster.reconciled()
    assert len(person.cluster.api.writes) == writes


async def test_the_command_shows_the_step_and_the_engines_of_both_revisions() -> None:
    person = await rolled()
    objects = person.cluster.api.objects
    text = as_text(objects[INFERENCE_SERVICE, "chat"], [objects[ENGINE_POOL, "chat-mixed"]])
    assert "Canary: CanaryStep: Step 1 of 2, 25 % of requests" in text
    assert text.count("Step 1 of 2") == 1
    assert [line.split() for line in text.splitlines()[2:4]] == [
        ["mixed", person.new, "wanted", "2", "2"],
        ["mixed", person.former, "former", "4", "4"],
    ]


async def test_a_decision_is_not_lost_where_the_operator_writes_and_not_taken_twice() -> None:
    person = await rolled()
    await person.decides(next_step, carried_out=False)
    with pytest.raises(NoCanaryError, match="not carried out the last decision"):
        await person.decides(next_step)
    await person.cluster.edited(replicas=5)
    assert person.text == "step 2 of 2, 50 % of requests"
    assert person.counts == (5, 5)
    notes = [
        item["metadata"]["annotations"]
        for (kind, _), item in person.cluster.api.objects.items()
        if kind is CONTROLLER_REVISION
    ]
    (decided,) = (note[DECISION] for note in notes if DECISION in note)
    assert json.loads(decided) == {"step": 1, "decision": 1, "seen": "0 None"}, (
        "the operator does not write it"
    )
    await person.decides(no_requests)
    await person.decides(next_step)
    assert person.text == "tried again: step 1 of 2, 25 % of requests"
    assert person.counts == (2, 5)


async def test_a_step_is_promoted_once_its_engines_are_ready_or_in_full() -> None:
    person = Person(await running(replicas=4, rollout=STEPS))
    person.cluster.is_down = lambda name: "-mixed-" in name and person.former not in name
    await person.cluster.edited(engine={"chunkSize": 64})
    assert person.label == f"{person.new}.{person.former}.0"
    assert person.progressing()[1] != "CanaryStep"
    with pytest.raises(NoCanaryError, match=r"step 1 is not reached.*0 of 2 engines"):
        await person.decides(next_step)
    await person.decides(all_requests)
    assert person.counts == (4, 4)


async def test_a_canary_can_be_aborted_while_another_spec_is_refused() -> None:
    person = await rolled()
    refused = {"strategy": "InPlace", "canary": {"steps": [25]}}
    await person.cluster.edited(rollout=refused)
    await person.decides(no_requests)
    assert person.counts == (0, 4)


async def test_a_spec_of_another_release_is_no_traceback() -> None:
    person = await rolled()
    (item,) = (
        item
        for (kind, _), item in person.cluster.api.objects.items()
        if kind is CONTROLLER_REVISION and item["revision"] == 2
    )
    item["data"]["spec"]["later"] = 1
    with pytest.raises(NoCanaryError, match=r"its spec cannot be read.*later"):
        await person.decides(next_step)
    await person.decides(no_requests)
    assert json.loads(item["metadata"]["annotations"][STATE])["number"] == 2


async def test_an_aborted_canary_whose_former_engines_are_gone_serves_and_a_warning_says_so() -> (
    None
):
    person = await rolled()
    new = person.new
    await person.decides(no_requests)
    events = person.cluster.api.events
    assert "EndedCanaryServes" not in [event["reason"] for event in events]
    (former,) = (name for name in person.cluster.names(DEPLOYMENT) if person.former in name)
    person.cluster.api.delete(DEPLOYMENT, former)
    await person.cluster.reconciled()
    assert person.engines == {new: 4}
    types = [event["type"] for event in events if event["reason"] == "EndedCanaryServes"]
    assert types == ["Warning"]
