"""Whether NetworkPolicies are enforced is asked of one engine, beside reconciles."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sluice_operator.api.conditions import Check
from sluice_operator.informer.keys import Key
from sluice_operator.kube.kinds import Manifest
from sluice_operator.probes.network_isolation import (
    ANSWER_SECONDS,
    EVERY_SECONDS,
    NetworkIsolation,
    connect_over_tcp,
)
from sluice_operator.service.plan import plan_service
from sluice_operator.service.report.status import service_status

from tests.operator.examples import NOW, service_observed
from tests.operator.statuses import condition
from tests.operator.virtual_time import FakeClock

KEY = Key("InferenceService", "default", "chat")
METRICS, HTTP, BOOTSTRAP = 8080, 8000, 8998


def engine(name: str = "a", **declared: int) -> Manifest:
    """A ready pod of an engine that declares these ports."""
    entries = [{"name": key, "containerPort": port} for key, port in declared.items()]
    spec = {"containers": [{"name": "engine", "ports": entries}]}
    return {"metadata": {"name": name}, "spec": spec, "status": {"podIP": "10.0.0.1"}}


MIXED = engine(http=HTTP, metrics=METRICS)
PREFILL = engine(http=HTTP, metrics=METRICS, bootstrap=BOOTSTRAP)


class Network:
    """Accepts connections to some ports, refuses others, and never answers at the rest."""

    def __init__(self, *accepted: int, silent: int = 0) -> None:
        self.accepted = accepted
        self.silent = silent
        self.asked: list[int] = []

    async def connect(self, address: str, port: int) -> None:
        self.asked.append(port)
        if port == self.silent:
            raise TimeoutError
        if port not in self.accepted:
            raise ConnectionRefusedError

    def isolation(self, clock: FakeClock | None = None) -> NetworkIsolation:
        return NetworkIsolation(self.connect, clock or FakeClock(), in_cluster=True)


async def answer_of(isolation: NetworkIsolation, *engines: Manifest) -> Check:
    """What is known once an engine has been asked."""
    isolation.check(KEY, engines)
    while isolation.again_seconds(KEY) == ANSWER_SECONDS:  # noqa: ASYNC110  (a task beside us)
        await asyncio.sleep(0)
    return isolation.check(KEY, engines)


@pytest.mark.parametrize(
    ("pod", "network", "says", "asked"),
    [
        (MIXED, Network(METRICS, HTTP), "False PoliciesNotEnforced", [METRICS, HTTP]),
        (MIXED, Network(METRICS), "True PoliciesEnforced", [METRICS, HTTP]),
        (MIXED, Network(METRICS, silent=HTTP), "True PoliciesEnforced", [METRICS, HTTP]),
        (MIXED, Network(), "Unknown NoAnswer", [METRICS]),
        (PREFILL, Network(METRICS), "True PoliciesEnforced", [METRICS, BOOTSTRAP]),
    ],
)
async def test_a_forbidden_port_is_tried_after_a_permitted_one(
    pod: Manifest, network: Network, says: str, asked: list[int]
) -> None:
    network.asked.clear()
    check = await answer_of(network.isolation(), pod)
    assert f"{check.status} {check.reason}" == says
    assert network.asked == asked


async def test_one_engine_is_asked_every_ten_minutes() -> None:
    network, clock = Network(METRICS, HTTP), FakeClock()
    isolation = network.isolation(clock)
    assert isolation.check(KEY, [MIXED, MIXED]).reason == "Asking"
    assert (await answer_of(isolation, MIXED)).status == "False"
    clock.elapsed_seconds += EVERY_SECONDS - 1
    assert isolation.again_seconds(KEY) == 1
    assert isolation.check(KEY, []).status == "False"
    assert len(network.asked) == 2
    clock.elapsed_seconds += 1
    network.accepted = (METRICS,)
    before = isolation.check(KEY, [MIXED])
    assert before.status == "False", "until there is another answer"
    assert (await answer_of(isolation, MIXED)).status == "True"


async def test_without_an_engine_or_a_pod_of_its_own_nothing_is_known() -> None:
    network = Network(METRICS)
    assert (await answer_of(network.isolation())).reason == "NoEngine"
    outside = NetworkIsolation(network.connect, FakeClock(), in_cluster=False)
    assert (await answer_of(outside, MIXED)).reason == "OutsideCluster"
    assert outside.again_seconds(KEY) is None
    assert network.asked == []


async def test_a_silent_network_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(address: str, port: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("sluice_operator.probes.network_isolation.TIMEOUT_SECONDS", 0.01)
    isolation = NetworkIsolation(connect, FakeClock(), in_cluster=True)
    assert isolation.check(KEY, [MIXED]).reason == "Asking"
    assert (await answer_of(isolation, MIXED)).reason == "NoAnswer"


async def test_a_connection_is_made_and_closed() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    await connect_over_tcp("127.0.0.1", port)
    server.close()
    await server.wait_closed()
    with pytest.raises(OSError, match="Connect"):
        await connect_over_tcp("127.0.0.1", port)


def test_the_service_says_so_and_is_no_less_ready() -> None:
    told: dict[str, Any] = {}
    for isolation in (None, Check("False", "PoliciesNotEnforced", "It is open.")):
        observed = service_observed(isolation=isolation)
        status = service_status(observed, plan_service(observed), NOW)
        told[str(isolation)] = [c for c in status["conditions"] if c["type"] != "NetworkIsolated"]
    assert condition(status, "NetworkIsolated")["reason"] == "PoliciesNotEnforced"
    assert len(set(map(str, told.values()))) == 1
