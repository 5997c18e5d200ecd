"""The loops of scaled services: which failure ends them."""

from __future__ import annotations

from typing import Any, cast

import pytest
from sluice_operator.autoscale.inventory import ScalingInventory
from sluice_operator.autoscale.loops import Autoscaler
from sluice_operator.autoscale.tick import ScalingTick
from sluice_operator.informer.keys import Key
from sluice_operator.kube.errors import LeaseLostError

from tests.operator.autoscale.world import KEY, scaled_service
from tests.operator.virtual_time import FakeClock


class FailingTick:
    """Fails in its own way each time."""

    def __init__(self, clock: FakeClock, *errors: BaseException) -> None:
        self.inventory = ScalingInventory(clock)
        self.memories: dict[Key, Any] = {}
        self.errors = iter(errors)

    async def __call__(self, key: Key) -> float:
        raise next(self.errors)


async def test_a_failed_tick_is_repeated_and_a_lost_lease_ends_all() -> None:
    clock = FakeClock()
    tick = FailingTick(clock, ValueError("broken"), LeaseLostError("the lease is not held"))
    autoscaler = Autoscaler(cast(ScalingTick, tick), clock, lambda _: None)
    autoscaler.service_seen(KEY, scaled_service())
    with pytest.raises(LeaseLostError):
        await autoscaler.run()
    assert next(tick.errors, None) is None
