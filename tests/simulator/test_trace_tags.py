"""Tenants and urgency drawn for a trace."""

from __future__ import annotations

from collections import Counter

from sluice_simulator.report import summarise
from sluice_simulator.traces.synthetic import Workload, synthesise, tagged

from tests.simulator.simulating import replay, settings

TRACE = synthesise(Workload("burst", 160, 100.0, (50, 600), (20, 80)), 0)


def test_the_first_tenant_is_the_busiest_and_the_share_is_urgent() -> None:
    found = tagged(TRACE, 4, 0.25, 0)
    tenants = Counter(request.routing_key for request in found.requests)
    assert [name for name, _ in tenants.most_common()] == [f"tenant-{n}" for n in range(4)]
    urgent = sum(request.priority > 0 for request in found.requests)
    assert 25 < urgent < 55
    assert found == tagged(TRACE, 4, 0.25, 0)


def test_without_tags_the_trace_is_as_it_was() -> None:
    assert tagged(TRACE, 0, 0.0, 5) == TRACE


def test_policies_that_look_at_tags_serve_those_they_are_for() -> None:
    trace = tagged(TRACE, 4, 0.1, 0)
    runs = {}
    for policy in ("fcfs", "priority", "round-robin"):
        replayed = replay(trace, settings(policy=policy, max_running_requests=16))
        runs[policy] = summarise(replayed.record, replayed.status)
    assert runs["priority"].urgent_ttft.p90 < runs["fcfs"].urgent_ttft.p90 / 3
    assert runs["round-robin"].small_tenants_ttft.p50 < runs["fcfs"].small_tenants_ttft.p50
