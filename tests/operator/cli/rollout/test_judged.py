"""The operator judges canaries: engines, shares, state and events, also when it is killed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sluice_operator.cli.rollout.canary import Decide, all_requests, next_step, no_requests
from sluice_operator.cli.rollout.progress import as_text
from sluice_operator.cli.rollout.session import Session
from sluice_operator.kube.errors import UnavailableError
from sluice_operator.kube.kinds import ENGINE_POOL, INFERENCE_SERVICE
from sluice_operator.scaled import Look
from sluice_operator.service.revisions.canary_state import CanaryState

from tests.operator.cli.rollout.person import JUDGED, Watched
from tests.operator.service.rollout.canary_world import at_speed
from tests.operator.statuses import condition

pytestmark = pytest.mark.process

MANY = 20_000


@pytest.mark.parametrize("killed", [False, True])
async def test_an_equal_revision_is_promoted_step_by_step_without_a_person(killed: bool) -> None:
    watched = await Watched.rolled()
    assert watched.cluster.looks.routers
    for minute, (shares, label) in enumerate([((2, 4), 25), ((4, 4), 50)]):
        number, former = (minute + 1) * MANY, (minute + 3) * MANY
        await watched.looks((number, number // 1000), (former, former // 1000))
        if minute:
            await watched.looks((number, number // 1000), (former, former // 1000))
        if killed:
            watched.cluster.operator_starts()
            await watched.cluster.reconciled()
        assert (watched.counts, watched.label) == (
            shares, f"{watched.new}.{watched.former}.{label}",
        )  # fmt: skip
        assert watched.state.reached == minute + 1
    new = watched.new
    await watched.looks((5 * MANY, 100), (7 * MANY, 140))
    assert (watched.engines, watched.label) == ({new: 4}, None)
    assert watched.cluster.looks.routers == (), "there is nothing to judge"
    assert [note[:15] for note in watched.notes("CanarySame")] == [
        "Step 1 is over:",
        "Step 2 is over:",
    ]
    assert "errors 0.1 % against 0.1 %" in watched.notes("CanarySame")[0]


async def test_the_look_that_ends_a_step_is_not_the_first_one_of_the_next() -> None:
    watched = await Watched.rolled(steps=[5, 20])
    for number in range(3):
        await watched.looks((number * MANY, 0), (number * MANY, 0), times=1)
    assert watched.label == f"{watched.new}.{watched.former}.20", "the same engine serves it"
    assert "looked" not in watched.state.learnt


async def test_a_revision_with_errors_is_halted_and_stays_so_until_it_is_promoted() -> None:
    watched = await Watched.rolled()
    await watched.looks((0, 0), (0, 0))
    await watched.looks((640, 32), (2560, 3))
    assert (watched.counts, watched.label) == ((0, 4), None)
    assert watched.progressing() == ("False", "CanaryWorse")
    (note,) = watched.notes("CanaryWorse")
    assert "The canary is worse: errors 5.0 % against 0.1 %: all requests go to the" in note
    watched.cluster.operator_starts()
    await watched.cluster.reconciled()
    assert watched.counts == (0, 4)
    await watched.decides(next_step)
    assert watched.text.startswith("tried again: step 1 of 2")
    assert (watched.counts, watched.progressing()) == ((2, 4), ("True", "CanaryStep"))


async def test_a_paused_canary_goes_back_though_not_on() -> None:
    watched = await Watched.rolled()
    await watched.looks((0, 0), (0, 0), times=1)
    await watched.cluster.edited(paused=True)
    for number in range(1, 5):
        await watched.looks((number * 600, 0), (number * 1800, 0), times=1)
    label = f"{watched.new}.{watched.former}"
    assert (watched.counts, watched.label, watched.state.step) == ((2, 4), f"{label}.25", 0)
    await watched.looks((3200, 800), (9000, 0), times=1)
    assert (watched.counts, watched.label) == ((2, 4), f"{label}.0")
    assert watched.progressing() == ("False", "CanaryWorse")
    await watched.cluster.edited(paused=False)
    assert (watched.counts, watched.label) == ((0, 4), None)


@pytest.mark.parametrize("engine", [{"chunkSize": 128}, {}])
async def test_a_canary_of_a_paused_service_is_judged_though_another_spec_waits(
    engine: dict[str, Any],
) -> None:
    watched = await Watched.rolled()
    await watched.looks((0, 0), (0, 0), times=1)
    await watched.cluster.edited(paused=True, engine=engine)
    assert watched.cluster.looks.routers
    assert watched.progressing() == ("False", "Paused")
    await watched.looks((640, 320), (2560, 3))
    label = f"{watched.new}.{watched.former}"
    assert (watched.counts, watched.label) == ((2, 4), f"{label}.0")
    assert watched.state.verdict == "worse"
    updated = condition(watched.cluster.status, "Updated")
    assert (updated["status"], updated["reason"]) == ("False", "Paused")
    assert watched.progressing() == ("False", "CanaryWorse")
    writes = len(watched.cluster.api.writes)
    await watched.cluster.reconciled()
    assert len(watched.cluster.api.writes) == writes
    first = watched.new
    await watched.cluster.edited(paused=False)
    assert first not in watched.engines, "the other spec is carried out"


@pytest.mark.parametrize("path", ["/deployments/chat-router", "/enginepools/chat-mixed"])
async def test_a_worse_revision_gets_no_request_though_other_writes_fail(path: str) -> None:
    watched = await Watched.rolled()
    await watched.looks((0, 0), (0, 0))
    watched.cluster.api.fails_at = path
    watched.cluster.api.edit(INFERENCE_SERVICE, "chat", {"replicas": 3, "router": {"replicas": 3}})
    for _ in range(2):
        with pytest.raises(UnavailableError):
            await watched.looks((640, 320), (2560, 3))
    assert watched.label == f"{watched.new}.{watched.former}.0"
    watched.cluster.api.fails_at = None
    await watched.cluster.reconciled()
    assert (watched.engines[watched.new], watched.progressing()) == (0, ("False", "CanaryWorse"))


@pytest.mark.parametrize(
    ("on_worse", "bad", "reason"), [("Halt", 20, "CanarySame"), ("Hold", 2000, "CanaryWorse")]
)
async def test_the_event_about_a_verdict_is_recorded_once_though_other_writes_fail(
    on_worse: str, bad: int, reason: str
) -> None:
    watched = await Watched.rolled(onWorse=on_worse)
    await watched.looks((0, 0), (0, 0))
    watched.cluster.api.fails_at = "/deployments/chat-router"
    watched.cluster.api.edit(INFERENCE_SERVICE, "chat", {"router": {"replicas": 3}})
    with pytest.raises(UnavailableError):
        await watched.looks((MANY, bad), (3 * MANY, 60))
    assert len(watched.notes(reason)) == 1
    watched.cluster.api.fails_at = None
    await watched.cluster.reconciled()
    verdicts = [n for n in watched.notes(reason) if n.startswith(("Step 1 is over", "It stays"))]
    assert len(verdicts) == 1


@pytest.mark.parametrize("step", [0, 1])
async def test_a_change_of_the_routers_alone_changes_nothing_of_a_canary(step: int) -> None:
    watched = await Watched.rolled()
    for number in range(step + 1):
        await watched.looks((number * MANY, 0), (3 * number * MANY, 0))
    before = (watched.engines, watched.label, watched.state)
    await watched.cluster.edited(router={"page": False})
    assert (watched.engines, watched.label, watched.state) == before
    await watched.decides(no_requests)
    await watched.cluster.edited(router={"page": True})
    assert (watched.counts, watched.progressing()) == ((0, 4), ("False", "CanaryAborted"))
    await watched.decides(next_step)
    assert (watched.counts, watched.progressing()) == ((2, 4), ("True", "CanaryStep"))
    await watched.cluster.edited(engine={"chunkSize": 128})
    assert (watched.state.step, watched.state.decision) == (0, 0), "other engines begin anew"


async def test_a_worse_revision_that_is_held_stays_where_it_is() -> None:
    watched = await Watched.rolled(onWorse="Hold")
    await watched.looks((0, 0), (0, 0))
    await watched.looks((640, 32), (2560, 3))
    label = f"{watched.new}.{watched.former}.25"
    assert (watched.counts, watched.label) == ((2, 4), label)
    assert watched.progressing() == ("False", "CanaryWorse")
    assert watched.notes("CanaryWorse")[0] == "It stays: errors 5.0 % against 0.1 %"
    await watched.looks((MANY, 32), (3 * MANY, 90))
    assert watched.label == label, "no further step by itself"
    await watched.decides(next_step)
    assert (watched.counts, watched.progressing()) == ((4, 4), ("True", "CanaryStep"))


@pytest.mark.parametrize("rollout", [{"strategy": "Surge"}, JUDGED, {"canary": {"steps": [25]}}])
async def test_a_worse_revision_ends_once_its_spec_does_not_hold_it(
    rollout: dict[str, Any],
) -> None:
    watched = await Watched.rolled(onWorse="Hold")
    await watched.looks((0, 0), (0, 0))
    await watched.looks((640, 32), (2560, 3))
    assert (watched.counts, watched.state.verdict) == ((2, 4), "held")
    await watched.cluster.edited(rollout=rollout)
    assert (watched.counts, watched.label) == ((0, 4), None)
    assert watched.progressing() == ("False", "CanaryWorse")
    assert (watched.state.verdict, watched.state.percent) == ("worse", 25)
    await watched.decides(next_step)
    text = "tried again: step 1 of" if "canary" in rollout else "promoted to all requests"
    assert watched.text.startswith(text)


async def test_engines_that_end_twice_halt_a_canary_also_in_a_second_try() -> None:
    watched = await Watched.rolled()
    for _ in range(2):
        watched.cluster.restarts = lambda name: 2 * (watched.former not in name)
        await watched.cluster.reconciled()
        assert watched.counts == (0, 4)
        assert "2 engines have ended 4 times" in watched.state.why
        watched.cluster.restarts = lambda name: 0
        await watched.decides(next_step)
        assert watched.counts == (2, 4), "tried again"


async def test_a_persons_decision_wins() -> None:
    watched = await Watched.rolled()
    await watched.looks((0, 0), (0, 0))
    await watched.decides(no_requests, carried_out=False)
    await watched.looks((MANY, 20), (3 * MANY, 60))
    assert (watched.counts, watched.state.verdict) == ((0, 4), "aborted")
    assert watched.notes("CanarySame") == []


@pytest.mark.parametrize("decide", [next_step, all_requests])
async def test_a_promotion_decided_before_the_verdict_does_not_override_it(
    decide: Decide,
) -> None:
    watched = await Watched.rolled()
    await watched.looks((0, 0), (0, 0))
    await watched.decides(decide, meanwhile=lambda: watched.looks((640, 32), (2560, 3)))
    assert (watched.counts, watched.label, watched.state.verdict) == ((0, 4), None, "worse")
    await watched.decides(decide)
    assert watched.state.verdict == ("promoted" if decide is all_requests else None)


async def test_a_lost_status_and_a_second_run_change_nothing() -> None:
    watched = await Watched.rolled()
    await watched.looks((0, 0), (0, 0), times=1)
    earlier = len(watched.cluster.api.writes)
    await watched.looks((100, 0), (300, 0), times=1)
    paths = [write.path for write in watched.cluster.api.writes[earlier:]]
    assert sum("/controllerrevisions/" in path for path in paths) == 1
    state, before = watched.state, (watched.engines, watched.label)
    for place in ((INFERENCE_SERVICE, "chat"), (ENGINE_POOL, "chat-mixed")):
        watched.cluster.api.objects[place]["status"] = {}
    watched.cluster.operator_starts()
    await watched.cluster.reconciled()
    assert (watched.state, (watched.engines, watched.label)) == (state, before)
    text = condition(watched.cluster.status, "Progressing")["message"]
    assert "100 of about" in text
    assert "errors 0.0 % against 0.0 %; speed was not compared; 1 of at least 2 minutes" in text
    writes = len(watched.cluster.api.writes)
    await watched.cluster.reconciled()
    assert len(watched.cluster.api.writes) == writes


async def test_without_requests_a_canary_stalls_and_goes_on_with_them() -> None:
    watched = await Watched.rolled()
    for _ in range(11):
        await watched.looks((0, 0), (0, 0))
    assert watched.progressing() == ("True", "CanaryStalled")
    text = condition(watched.cluster.status, "Progressing")["message"]
    assert ", 0 of about " in text
    assert watched.counts == (2, 4)
    await watched.looks((MANY, 20), (3 * MANY, 60))
    assert watched.progressing() == ("True", "CanaryStep")
    assert watched.counts == (4, 4)


async def test_no_router_is_asked_where_a_person_judges() -> None:
    watched = await Watched.rolled(minutes=None, judge={"errors": False, "slo": False})
    assert watched.progressing() == ("True", "CanaryWaits")
    assert watched.cluster.looks.routers == ()
    await watched.looks((MANY, 20_000), (3 * MANY, 0))
    assert (watched.counts, watched.state) == ((2, 4), CanaryState(reached=1, percent=25))


@pytest.mark.parametrize(
    ("ratio", "shown"), [(1.0, ("True", "CanaryWaits")), (1.3, ("False", "CanaryWorse"))]
)
async def test_a_person_promotes_where_the_speed_alone_is_judged(
    ratio: float, shown: tuple[str, str]
) -> None:
    watched = await Watched.rolled(judge={"errors": False})
    names: dict[str | None, str] = {"b": watched.new, "a": watched.former}
    seen: tuple[Look, ...] = ()
    for answer in at_speed(ratio):
        engines = tuple(replace(each, revision=names[each.revision]) for each in answer.engines)
        seen += (replace(answer, engines=engines),)
        watched.cluster.looks.answers = seen
        await watched.cluster.reconciled()
    assert (watched.state.step, watched.progressing()) == (0, shown)


async def test_status_shows_each_signal_with_a_bar() -> None:
    watched = await Watched.rolled(minutes=2)
    await watched.looks((0, 0), (0, 0), times=1)
    await watched.looks((100, 1), (300, 3), times=1)
    session = Session(watched.cluster.api, "default", "chat")  # type: ignore[arg-type]
    service, pools = await session.service(), await session.pools()
    lines = as_text(service, pools, await session.revisions()).splitlines()
    errors, time = lines[-2:]
    assert errors.startswith("  errors   ━")
    assert "·" in errors
    assert errors.endswith(" keys: errors 1.0 % against 1.0 %")
    assert time == f"  time     {'━' * 16}{'·' * 16} 1 of at least 2 minutes"
    await watched.looks((740, 100), (3000, 3), times=1)
    text = as_text(await session.service(), await session.pools(), await session.revisions())
    assert text.startswith("Stopped: CanaryWorse: The canary is worse: errors 13.5 % against 0.1 %")
    assert "━" not in text, "nothing more is counted"
