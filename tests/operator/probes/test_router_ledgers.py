"""What routers count of their requests is added up, each asked every few minutes."""

from __future__ import annotations

from sluice_contract.cluster import labels
from sluice_contract.wire.load import Ledger
from sluice_operator.informer.nodes import Nodes
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.kinds import INFERENCE_SERVICE, POD, SERVICE_CHILDREN, Manifest
from sluice_operator.probes.image_volumes import ImageVolumes
from sluice_operator.probes.optional_kinds import OptionalKinds
from sluice_operator.probes.router_ledgers import EVERY_SECONDS, RouterLedgers
from sluice_operator.service.observe import ServiceObserver

from tests.operator.examples import IMAGES, service
from tests.operator.harness.memory_api import MemoryApi
from tests.operator.harness.memory_cluster import KEY
from tests.operator.virtual_time import FakeClock

ROUTER_LABELS = {labels.SERVICE: "chat", labels.ROLE: labels.ROUTER_ROLE}


def router(name: str, address: str) -> Manifest:
    return {"metadata": {"name": name, "uid": name}, "status": {"podIP": address}}


class Routers:
    """What routers answer, by host; none is silence."""

    def __init__(self, **answers: Ledger) -> None:
        self.answers = answers
        self.asked: list[str] = []

    async def __call__(self, url: str) -> bytes:
        self.asked.append(url)
        host = url.removeprefix("http://").split(".")[0]
        if host not in self.answers:
            raise OSError("refused")
        return self.answers[host].model_dump_json(by_alias=True).encode()


A, B = router("a", "a.1"), router("b", "b.1")


async def test_routers_are_added_up_and_asked_only_after_a_while() -> None:
    routers = Routers(a=Ledger(answered=2, abandoned=1, open=3), b=Ledger(answered=3, lost=1))
    clock = FakeClock()
    ledgers = RouterLedgers(routers, clock)
    assert ledgers.again_seconds([A, B]) is None
    for _ in range(2):
        assert await ledgers.total([A, B]) == Ledger(answered=5, abandoned=1, lost=1, open=3)
    assert routers.asked == ["http://a.1:8080/ledger", "http://b.1:8080/ledger"]
    assert ledgers.again_seconds([A, B]) == EVERY_SECONDS
    clock.elapsed_seconds += EVERY_SECONDS
    routers.answers["a"] = Ledger(answered=7)
    assert await ledgers.total([A, B]) == Ledger(answered=10, lost=1)


async def test_a_router_that_is_silent_keeps_its_count_and_one_that_is_gone_has_none() -> None:
    routers, clock = Routers(a=Ledger(answered=2), b=Ledger(lost=1)), FakeClock()
    ledgers = RouterLedgers(routers, clock)
    assert await ledgers.total([router("c", "c.1")]) is None
    await ledgers.total([A, B])
    del routers.answers["a"]
    clock.elapsed_seconds += EVERY_SECONDS
    assert await ledgers.total([A, B]) == Ledger(answered=2, lost=1)
    assert await ledgers.total([B]) == Ledger(lost=1)


async def test_a_router_that_is_not_ready_is_neither_asked_nor_waited_for() -> None:
    api, clock = MemoryApi((INFERENCE_SERVICE, *SERVICE_CHILDREN, POD)), FakeClock()
    client = ApiClient(api, lambda verb, plural: None)
    observer = ServiceObserver(
        client,
        IMAGES,
        Nodes(client),
        OptionalKinds(client, clock),
        ImageVolumes(client, clock, "default"),
        ledgers=RouterLedgers(Routers(a=Ledger(answered=2)), clock),
    )
    api.apply(INFERENCE_SERVICE, service({}) | {"status": {}})
    found = []
    for ready in ("True", "False"):
        pod = router("a", "a.1")
        pod["metadata"] |= {"namespace": "default", "labels": ROUTER_LABELS}
        pod["status"]["conditions"] = [{"type": "Ready", "status": ready}]
        api.apply(POD, pod)
        observed = await observer.observe(KEY)
        assert observed is not None
        found.append((observed.ledger, observed.look_again_seconds))
        clock.elapsed_seconds += 2 * EVERY_SECONDS
    assert found == [(Ledger(answered=2), EVERY_SECONDS), (None, None)]
