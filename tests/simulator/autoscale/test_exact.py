"""The light fleet is that of the real scheduler, nearly.

A fixed fleet runs through both: the light one, and the engines' own schedulers, steps and roles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pytest
from sluice_contract.cluster.labels import Role
from sluice_runtime.scheduler.limits import Limits
from sluice_runtime.scheduler.settings import SchedulerSettings, StepTarget
from sluice_simulator.autoscale.constants import AZURE, GOAL, Constants
from sluice_simulator.autoscale.fleet import AutoscaledFleet
from sluice_simulator.autoscale.outcome import Trail, outcome
from sluice_simulator.autoscale.policies.policy import Static
from sluice_simulator.autoscale.work import Work
from sluice_simulator.costs import Coefficients, Cost
from sluice_simulator.fleet import FleetReplay, Pool
from sluice_simulator.handover import Network
from sluice_simulator.replay import Options
from sluice_simulator.traces.request import Trace

from tests.simulator.autoscale.scenes import chats

PAGE_TOKENS: Final = 16
CONTEXT_TOKENS: Final = 131_072
BYTES_PER_SECOND: Final = 12.5e9
"""Between engines of two pools."""
WAIT_SECONDS: Final = 0.0002


def exact_trail(trace: Trace, constants: Constants, replicas: Mapping[Role, int]) -> Trail:
    """The trail of a fixed fleet, in the form of the light one."""
    cost, settings = _cost(constants), _settings(constants)
    pools = [Pool(role, number, cost, settings) for role, number in replicas.items()]
    page_bytes = int(PAGE_TOKENS * constants.device.kv_token_bytes)
    network = Network(BYTES_PER_SECOND, WAIT_SECONDS, page_bytes)
    replayed = FleetReplay(trace, pools, network, Options(max_tokens=1)).run()
    works = []
    for number, line in enumerate(replayed.record.timelines):
        assert line.first_token_seconds is not None, line.error
        request = line.request
        work = Work(number, request.arrival_seconds, request.prompt_tokens, request.output_tokens)
        work.first_token_seconds = line.first_token_seconds
        work.ended_seconds = line.last_token_seconds
        works.append(work)
    ended = replayed.record.ended_seconds
    engines = sum(replicas.values())
    return Trail(works, replica_seconds=engines * ended, ended_seconds=ended, peak=engines)


def _cost(constants: Constants) -> Cost:
    """The cost model of the exact fleet: attention is not hidden behind weight reads; a row costs
    only what it reads, as here."""
    device, share = constants.device, constants.share
    return Cost(
        name="light",
        source="the constants of the light fleet",
        context_length=CONTEXT_TOKENS,
        kv_pool_tokens=constants.kv_pool_tokens,
        coefficients=Coefficients(
            step=device.step_seconds / share,
            weights=device.weight_bytes / device.bytes_per_second / share,
            token=device.token_flops / device.flops / share,
            row=0.0,
            product=device.pair_flops / device.flops / share,
            context=device.kv_token_bytes / device.bytes_per_second / share,
        ),
    )


def _settings(constants: Constants) -> SchedulerSettings:
    return SchedulerSettings(
        limits=Limits(CONTEXT_TOKENS, constants.kv_pool_tokens),
        page_size=PAGE_TOKENS,
        chunk_size=constants.chunk_tokens,
        max_prefill_tokens=constants.chunk_tokens,
        min_prefill_tokens=PAGE_TOKENS,
        max_running_requests=constants.max_running_requests,
        max_queued_requests=100_000,
        mixed=True,
        policy="slack",
        ttft_seconds=constants.promise.ttft_seconds,
        target=StepTarget(constants.promise.itl_seconds, GOAL),
    )


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
