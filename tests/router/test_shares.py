"""Tenants share a router: who is below its share passes while another fills the router."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from random import Random

import aiohttp
import pytest
from sluice_contract.config.router import Auth
from sluice_router.errors import OverloadedError
from sluice_router.lifecycle import Lifecycle
from sluice_router.memory import SMALL_BYTES, Body, ByteBudget

from tests.router import fakes

KIBIBYTE = 1024


def served(lifecycle: Lifecycle, tenant: str | None, most: int) -> list[ExitStack]:
    """As many requests of the tenant as are taken, `most` at the most."""
    taken: list[ExitStack] = []
    for _ in range(most):
        request = ExitStack()
        try:
            request.enter_context(lifecycle.served(tenant))
        except OverloadedError:
            break
        taken.append(request)
    return taken


def test_a_tenant_leaves_a_reserve_to_those_below_their_share() -> None:
    lifecycle = Lifecycle(10.0, 16)
    greedy = served(lifecycle, "a", 99)
    assert len(greedy) == 12
    with pytest.raises(OverloadedError) as refused, lifecycle.served("a"):
        pass
    assert str(refused.value) == (
        "your requests: 12 are served and 1 more comes; allowed while less than a quarter of 16 "
        "(server.maxRequests) is free: 8, your share"
    )
    assert refused.value.headers["Retry-After"] == "1"
    others = served(lifecycle, "b", 99)
    assert len(others) == 4
    for request in greedy[:5]:  # what ends goes to those below their share, until all have one
        request.close()
        assert not served(lifecycle, "a", 1)
        others += served(lifecycle, "b", 1)
    assert len(others) == 5
    assert len(served(lifecycle, "c", 99)) == 4


def test_one_who_ends_everything_leaves_everything() -> None:
    lifecycle = Lifecycle(10.0, 16)
    for tenant in ("a", "b"):
        requests = served(lifecycle, tenant, 99)
        assert len(requests) == 12
        for request in requests:
            request.close()


def test_without_tenants_the_whole_router_is_everybodys() -> None:
    assert len(served(Lifecycle(10.0, 16), None, 99)) == 16


@pytest.mark.parametrize("seed", range(5))
def test_nobody_below_its_share_is_refused_unless_such_as_it_hold_the_reserve(seed: int) -> None:
    """Tenants above their share never hold a place of the reserve that they took as such."""
    random, capacity = Random(seed), 32
    lifecycle = Lifecycle(10.0, capacity)
    held: list[tuple[str, bool, ExitStack]] = []
    for _ in range(1500):
        if held and random.random() < 0.35:
            held.pop(random.randrange(len(held)))[2].close()
            continue
        tenant = random.choice("aaaaaaabbc")
        count = Counter(name for name, _, _ in held)
        in_reserve = len(held) >= capacity * 3 // 4
        is_below = count[tenant] < capacity // (len(count) + 1)
        if taken := served(lifecycle, tenant, 1):
            assert is_below or not in_reserve
            held.append((tenant, in_reserve, taken[0]))
        else:
            assert len(held) == capacity or (in_reserve and not is_below)


def body_of(budget: ByteBudget, tenant: str, size: int) -> Body:
    body = Body(budget, tenant)
    try:
        for _ in range(size // KIBIBYTE):
            body.add(b"x" * KIBIBYTE)
    except OverloadedError:
        body.release()
        raise
    return body


@pytest.mark.parametrize(("size", "most"), [(8 * KIBIBYTE, 96), (2 * SMALL_BYTES, 4)])
def test_bytes_are_shared_as_requests_are(size: int, most: int) -> None:
    """Bodies that are not small have three quarters of the bytes, and of these the same share."""
    budget = ByteBudget(1024 * KIBIBYTE)
    bodies = [body_of(budget, "a", size) for _ in range(most)]
    with pytest.raises(OverloadedError, match=r"your requests: .* bytes are held and 1024 more"):
        body_of(budget, "a", size)
    other = body_of(budget, "b", size)
    other.release()
    for body in bodies:
        body.release()
    assert budget.held == 0
    assert len([body_of(budget, "b", size) for _ in range(most)]) == most


def test_what_may_be_dropped_is_not_counted_for_its_tenant() -> None:
    budget = ByteBudget(1024 * KIBIBYTE)
    dropped: list[int] = []
    bodies = [body_of(budget, "a", 32 * KIBIBYTE) for _ in range(24)]
    for number, body in enumerate(bodies):
        body.spare(lambda number=number: dropped.append(number))  # type: ignore[misc]
    bodies += [body_of(budget, "a", 32 * KIBIBYTE) for _ in range(4)]
    assert not dropped, "below its share again"
    bodies[-5].keep()
    assert body_of(budget, "b", 128 * KIBIBYTE).held
    bodies += [body_of(budget, "a", 32 * KIBIBYTE) for _ in range(12)]
    assert dropped[0] == 0
    assert 23 not in dropped, "it is needed"


async def test_a_router_that_one_tenant_fills_serves_another(tmp_path: Path) -> None:
    for name in ("greedy", "other"):
        (tmp_path / name).write_text(name)

    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.streams_when_let))
        router = await stack.enter_async_context(
            fakes.running_router(
                engine.url, server={"max_requests": 4}, auth=Auth(keys_directory=str(tmp_path))
            )
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())

        async def asked(tenant: str) -> aiohttp.ClientResponse:
            headers = {"Authorization": f"Bearer {tenant}"}
            post = client.post(
                router.url + "/v1/completions", data=b'{"stream": true}', headers=headers
            )
            return await stack.enter_async_context(post)

        answers = await asyncio.gather(*(asked("greedy") for _ in range(6)))
        assert Counter(answer.status for answer in answers) == {200: 3, 429: 3}
        refused = next(answer for answer in answers if answer.status == 429)
        assert refused.headers["Retry-After"] == "1"
        error = json.loads(await refused.read())["error"]
        assert error["code"] == "router_full"
        assert error["message"].startswith("your requests: 3 are served and 1 more comes; allowed")
        assert (await asked("other")).status == 200
        engine.gate.set()
