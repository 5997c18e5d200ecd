"""An engine whose pod was moved to the other pool is asked to take that pool's role."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.handover import refuse_other_body
from sluice_contract.wire.private_calls import PRIVATE_HEADER, verified_call
from sluice_router import pool_roles
from sluice_router.attempts import EngineCalls
from sluice_router.engines import Endpoint, Fleet, Phase
from sluice_router.pool_roles import AGAIN_SECONDS, PoolRoles

from tests.router.fakes import load_report

KEY = b"k" * 32
UNIX = 1.7e9


@dataclass
class Engine:
    """Takes each role that it is asked to take, when it is let."""

    status: int = 200
    asked: list[str] = field(default_factory=list)
    may: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self, request: web.Request) -> web.Response:
        body, request_id = await request.read(), request.headers["X-Request-Id"]
        signed = request.headers[PRIVATE_HEADER]
        verified = verified_call([KEY], signed, request_id, request.path, UNIX)
        refuse_other_body({PRIVATE_HEADER: verified.body_sha256 or ""}, body)
        assert verified.body_sha256 == hashlib.sha256(body).hexdigest()
        asked = json.loads(body)
        assert asked["epoch"] == "e1"
        self.asked.append(asked["role"])
        await self.may.wait()
        return web.json_response({}, status=self.status)


@dataclass
class Router:
    fleet: Fleet
    roles: PoolRoles
    endpoint: Endpoint
    seconds: float = 100.0

    def report(self, role: Role, *, draining: bool = False) -> None:
        report = load_report(role=role, draining=draining)
        self.fleet.report(self.endpoint.key, report, own_inflight=0)

    async def look(self) -> None:
        """What it begins comes as far as it can."""
        self.roles.look()
        for _ in range(200):
            await asyncio.sleep(0.001)
            if not self.roles._asking or all(task.done() for task in self.roles._asking.values()):
                return


@asynccontextmanager
async def router_of(engine: Engine, pool: Role) -> AsyncIterator[Router]:
    app = web.Application()
    app.router.add_post("/role", engine.take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    endpoint = Endpoint("p", f"http://127.0.0.1:{runner.addresses[0][1]}", pool, Phase.READY)
    async with aiohttp.ClientSession() as session:
        fleet = Fleet(lambda: router.seconds)
        calls = EngineCalls(session, lambda: (KEY,), lambda: UNIX, lambda: "r1")
        roles = PoolRoles(fleet, calls, lambda: router.seconds)
        router = Router(fleet, roles, endpoint)
        fleet.replace_endpoints([endpoint])
        yield router
    await runner.cleanup()


async def test_it_is_asked_once_at_a_time_and_not_when_it_has_the_role() -> None:
    engine = Engine()
    async with router_of(engine, Role.DECODE) as router:
        await router.look()  # nothing is known of it
        router.report(Role.PREFILL)
        await router.look()
        await router.look()
        assert engine.asked == ["decode"]
        engine.may.set()
        await router.look()
        router.report(Role.DECODE)
        await router.look()
        assert engine.asked == ["decode"]
        moved = replace(router.endpoint, role=Role.PREFILL)  # its labels were changed again
        router.fleet.replace_endpoints([moved])
        await router.look()
        assert engine.asked == ["decode", "prefill"]


async def test_one_that_refuses_is_asked_again_later(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(status=400)
    engine.may.set()
    async with router_of(engine, Role.DECODE) as router:
        router.report(Role.PREFILL)
        await router.look()
        await router.look()
        assert engine.asked == ["decode"]
        assert "engine p does not become decode: 400" in caplog.text
        router.seconds += AGAIN_SECONDS
        await router.look()
        assert engine.asked == ["decode"] * 2


async def test_engines_that_leave_or_are_mixed_are_left_alone() -> None:
    engine = Engine()
    async with router_of(engine, Role.DECODE) as router:
        router.report(Role.PREFILL, draining=True)
        await router.look()
        router.report(Role.MIXED)
        await router.look()
        router.report(Role.PREFILL)
        for phase in (Phase.TERMINATING, Phase.UNREADY):
            router.fleet.replace_endpoints([replace(router.endpoint, phase=phase)])
            await router.look()
        assert engine.asked == []


async def test_one_that_cannot_be_reached_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async with router_of(Engine(), Role.DECODE) as router:
        router.endpoint = replace(router.endpoint, url="http://127.0.0.1:1")
        router.fleet.replace_endpoints([router.endpoint])
        router.report(Role.PREFILL)
        await router.look()
    assert "engine p has not said that it became decode" in caplog.text


async def test_a_call_that_never_ends_is_given_up_and_the_engine_is_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine may be at its change: then its report says that it drains."""
    monkeypatch.setattr(pool_roles, "ANSWER_SECONDS", 0.05)
    engine = Engine()
    async with router_of(engine, Role.DECODE) as router:
        router.report(Role.PREFILL)
        await router.look()
        router.report(Role.PREFILL, draining=True)
        router.seconds += AGAIN_SECONDS
        await router.look()
        assert engine.asked == ["decode"]
        router.report(Role.PREFILL)
        await router.look()
        assert engine.asked == ["decode"] * 2
        engine.may.set()


def unreadable() -> list[bytes]:
    raise PermissionError("key")


async def test_a_key_that_cannot_be_read_is_no_end_of_asking(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Engine()
    engine.may.set()
    async with router_of(engine, Role.DECODE) as router:
        calls = router.roles._calls
        router.roles._calls = replace(calls, keys=unreadable)
        router.report(Role.PREFILL)
        await router.look()
        assert "engine p has not said that it became decode" in caplog.text
        router.roles._calls = calls
        router.seconds += AGAIN_SECONDS
        await router.look()
        assert engine.asked == ["decode"]
