"""The light fleet is that of the real scheduler, nearly."""

from __future__ import annotations

import pytest
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.constants import AZURE
from sluice_simulator.autoscale.exact import exact_trail
from sluice_simulator.autoscale.fleet import AutoscaledFleet
from sluice_simulator.autoscale.outcome import outcome
from sluice_simulator.autoscale.policies.policy import Static

from tests.simulator.autoscale.scenes import chats


@pytest.mark.process
@pytest.mark.parametrize(
    "replicas", [{Role.MIXED: 3}, {Role.PREFILL: 2, Role.DECODE: 1}], ids=["mixed", "two-pools"]
)
def test_a_fixed_fleet_gives_requests_what_the_engines_own_schedulers_do(
    replicas: dict[Role, int],
) -> None:
    trace = chats(60.0, 1.0)
    light = outcome(AutoscaledFleet(trace, AZURE, Static(replicas), replicas).run(), AZURE)
    exact = outcome(exact_trail(trace, AZURE, replicas), AZURE)
    assert light.attained == pytest.approx(exact.attained, abs=0.03)
    assert light.replica_hours == pytest.approx(exact.replica_hours, rel=0.03)
    assert light.ttft_p50_seconds == pytest.approx(exact.ttft_p50_seconds, rel=0.15)
    assert light.ttft_p99_seconds == pytest.approx(exact.ttft_p99_seconds, rel=0.2)
    assert light.itl_p99_seconds == pytest.approx(exact.itl_p99_seconds, rel=0.2)
