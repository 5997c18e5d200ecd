"""Our `decide` on a fleet: what it asks for fits into the budget at every moment."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from sluice_autoscaler.history import Tick
from sluice_autoscaler.journal import JournalLine, read_journal
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.constants import AZURE
from sluice_simulator.autoscale.fleet import AutoscaledFleet
from sluice_simulator.autoscale.grids import Scene
from sluice_simulator.autoscale.outcome import Change, Trail, kept_promise, outcome
from sluice_simulator.autoscale.policies.ours import Ours, settings_of
from sluice_simulator.autoscale.policies.policy import Targets
from sluice_simulator.autoscale.policy_comparison import compete, play
from sluice_simulator.autoscale.rerun import rerun
from sluice_simulator.autoscale.work import Work
from sluice_simulator.traces.request import Trace, TraceRequest

from tests.autoscaler.building import Service, wanting
from tests.simulator.autoscale.scenes import Recording, chats


@pytest.mark.parametrize("budget", [4, 7])
def test_both_pools_and_what_drains_fit_into_the_budget_at_every_moment(budget: int) -> None:
    constants = replace(AZURE, gpu_budget=budget)
    roles, ticks = (Role.PREFILL, Role.DECODE), list[Tick]()
    policy = Ours(settings_of(constants, roles), on_tick=ticks.append)
    trail = AutoscaledFleet(chats(300.0, 3.0), constants, policy, dict.fromkeys(roles, 1)).run()
    assert trail.peak == budget  # the load asks for more
    for tick in ticks:
        pools = tick.sample.pools.values()
        assert all(pool.unschedulable == 0 for pool in pools)
        wanted = sum(pool.desired for pool in tick.decision.pools.values())
        assert wanted <= budget


def test_engines_count_each_request_once_and_late_ones_while_they_wait() -> None:
    watching = Recording(lambda _: Targets({Role.MIXED: 2}))
    constants = replace(AZURE, hand_back_seconds=math.inf)
    fleet = AutoscaledFleet(chats(200.0, 4.0), constants, watching, {Role.MIXED: 2})
    works = fleet.run().works
    waited = 0
    for sample in watching.samples:
        at = sample.time_seconds - constants.report_age_seconds
        late = [work for work in works if min(at, work.first_token_seconds) > _deadline(work)]
        ended = [work for work in works if work.ended_seconds <= at and work not in late]
        counts = [engine.slo for engine in sample.engines or () if engine.slo]
        assert sum(count.requests for count in counts) == len(late) + len(ended)
        assert sum(count.in_time for count in counts) == sum(
            kept_promise(work, constants) for work in ended
        )
        waiting = [work for work in late if work.first_token_seconds > at]
        assert sum(count.late for count in counts) == len(waiting)
        waited += len(waiting)
    assert waited


def _deadline(work: Work) -> float:
    return work.arrival_seconds + AZURE.promise.ttft_seconds


def test_a_change_is_regretted_where_the_next_one_undoes_it_within_a_start() -> None:
    sizes = [(0.0, 2, 4), (20.0, 4, 3), (60.0, 3, 2), (80.0, 2, 1), (100.0, 1, 5), (131.0, 5, 4)]
    changes = [Change(at, Role.MIXED, before, after, "", "") for at, before, after in sizes]
    changes.insert(1, Change(5.0, Role.DECODE, 3, 2, "", ""))
    trail = Trail([Work(0, 0.0, 1, 1, first_token_seconds=0.1, ended_seconds=0.1)], changes=changes)
    assert outcome(trail, AZURE).regretted == 2


@pytest.mark.process
def test_a_steady_poisson_stream_settles_on_the_best_fixed_size() -> None:
    draw, now, requests = random.Random(5), 0.0, []
    while now < 3600.0:
        now += draw.expovariate(4.0)
        requests.append(TraceRequest(now, draw.randint(200, 2000), draw.randint(20, 300)))
    scene = Scene(Trace("poisson", tuple(requests)), AZURE, (Role.MIXED,))
    fixed, ours = (compete(scene, 0.99, policy) for policy in ("static", "ours"))
    changes = play(scene, ours.candidate).changes
    assert ours.outcome.attainment >= 0.99
    assert len(changes) <= 4
    assert changes[-1].after == fixed.outcome.peak_replicas


def test_a_journal_repeats_the_margin() -> None:
    service = Service(wanting(ttft_seconds=2.0, percentile=99.0), {Role.MIXED: 6})
    lines = []
    for minute in range(1, 31):
        counts = {"slo_requests_total": 900 * minute, "slo_in_time_total": 900 * minute}
        service.look({Role.MIXED: {"prompt_tokens": 8000} | counts}, seconds=60.0)
        last = service.history.last
        assert last
        lines.append(
            JournalLine(settings=service.settings, sample=last.sample, decision=last.decision)
        )
    runs = rerun(read_journal(line.text() for line in lines))
    assert all(run.alike for run in runs)
    assert [run.now.margin for run in runs] == [line.decision.margin for line in lines]
    assert runs[-1].now.margin.factor < 1.0
