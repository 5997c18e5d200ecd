"""Routers of services with a canary are asked, and reconciles get the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from sluice_contract.cluster.labels import CanaryShare, Role
from sluice_contract.wire.load import CanaryCounts, ServiceLoad, SideCounts
from sluice_operator.informer.keys import Key
from sluice_operator.process.canaries import CanaryLoop
from sluice_operator.scaled import LOOKS

from tests.operator.virtual_time import FakeClock

CHAT = Key("InferenceService", "default", "chat")
SHARES = {Role.MIXED: CanaryShare("b", "a", 5)}
NEXT = {Role.MIXED: CanaryShare("b", "a", 25)}


class Routers:
    """Routers that answer with their epoch, without those that are down."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.down: set[str] = set()

    async def __call__(self, routers: Iterable[str]) -> tuple[ServiceLoad, ...]:
        addresses = tuple(routers)
        self.asked.extend(addresses)
        return tuple(_load(address) for address in addresses if address not in self.down)


def _load(epoch: str) -> ServiceLoad:
    zero = SideCounts()
    counts = CanaryCounts(
        epoch=epoch,
        revision="b",
        former="a",
        percent=25,
        new_counts=zero,
        former_counts=zero,
    )
    return ServiceLoad(
        draining=False, discovered=True, waiting_requests=0, engines=(), canary=counts
    )


def loop(routers: Routers) -> tuple[CanaryLoop, list[Key]]:
    changed: list[Key] = []
    return CanaryLoop(routers, changed.append, FakeClock()), changed


async def test_the_last_answers_are_kept_and_each_is_judged() -> None:
    routers = Routers()
    canaries, changed = loop(routers)
    assert canaries.last_looks(CHAT) == ()
    canaries.follow(CHAT, SHARES, ("r1", "r2"))
    for _ in range(LOOKS + 3):
        await canaries.look()
    assert len(canaries.last_looks(CHAT)) == LOOKS
    assert [c.epoch for c in canaries.last_looks(CHAT)[-1].counts] == ["r1", "r2"]
    assert changed == [CHAT] * (LOOKS + 3)
    routers.down = {"r1"}
    await canaries.look()
    last = canaries.last_looks(CHAT)[-1]
    assert [c.epoch for c in last.counts] == ["r2"]
    assert (last.asked, last.answered) == (2, 1)


async def test_other_routers_are_asked_from_now_on_and_none_after_the_end() -> None:
    routers = Routers()
    canaries, _ = loop(routers)
    canaries.follow(CHAT, SHARES, ("r1",))
    await canaries.look()
    canaries.follow(CHAT, SHARES, ("r2",))
    assert len(canaries.last_looks(CHAT)) == 1
    await canaries.look()
    canaries.follow(CHAT, {})
    await canaries.look()
    assert routers.asked == ["r1", "r2"]
    assert canaries.last_looks(CHAT) == ()


async def test_looks_at_another_share_are_forgotten() -> None:
    canaries, _ = loop(Routers())
    canaries.follow(CHAT, SHARES, ("r1",))
    asked = asyncio.create_task(canaries.look())
    asyncio.get_running_loop().call_soon(canaries.follow, CHAT, NEXT, ("r1",))
    await asked
    assert canaries.last_looks(CHAT) == ()
    await canaries.look()
    assert len(canaries.last_looks(CHAT)) == 1


async def test_a_service_without_a_router_is_looked_at() -> None:
    canaries, changed = loop(Routers())
    canaries.follow(CHAT, SHARES)
    await canaries.look()
    (last,) = canaries.last_looks(CHAT)
    assert (last.asked, changed) == (0, [CHAT])


async def test_a_canary_that_ends_just_before_its_routers_are_asked_is_forgotten() -> None:
    canaries, _ = loop(Routers())
    canaries.follow(CHAT, SHARES, ("r1",))
    asked = asyncio.create_task(canaries.look())
    asyncio.get_running_loop().call_soon(canaries.follow, CHAT, {})
    await asked
    assert canaries.last_looks(CHAT) == ()
