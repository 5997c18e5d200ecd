"""Our `decide` on a fleet: what it asks for fits into the budget at every moment."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sluice_autoscaler.history import Tick
from sluice_contract.cluster.labels import Role
from sluice_simulator.autoscale.constants import AZURE
from sluice_simulator.autoscale.fleet import AutoscaledFleet
from sluice_simulator.autoscale.policies.ours import Ours, settings_of

from tests.simulator.autoscale.scenes import chats


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
