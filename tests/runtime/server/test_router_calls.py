"""`POST /role`, signed by the router: who may call, what is refused, and what an engine says."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest
from sluice_contract.cluster.labels import Role
from sluice_contract.config.kv_transfer import KvTransfer
from sluice_contract.wire.handover import PREFILL_HEADER, Bound, PrefillRef, signed_header
from sluice_contract.wire.private_calls import PRIVATE_HEADER, signed_call
from sluice_runtime.server import router_calls
from sluice_runtime.wire.endpoint import private_endpoint
from sluice_runtime.wire.messages import Abort, RoleTaken, TakeRole

from tests.runtime.server.conftest import MODEL, Server, running_server, until
from tests.runtime.server.fake_engine import READY

KEY = b"k" * 32
PREFILL = PrefillRef(host="10.0.0.7", port=8998, epoch="e7")


@asynccontextmanager
async def server_of(role: Role) -> AsyncIterator[Server]:
    with private_endpoint() as endpoint:
        async with running_server(endpoint, role, KEY) as server:
            yield server


async def take_role(server: Server, key: bytes = KEY, signed: Any = None, **fields: Any) -> Any:
    """`signed`: the body that was signed, if it is another one. The epoch is the engine's, unless
    it is among the `fields`."""
    body = json.dumps({"epoch": server.service.load_report().epoch} | fields).encode()
    digest = hashlib.sha256(body if signed is None else json.dumps(signed).encode()).hexdigest()
    return await post(server, body, signature(key, digest))


def signature(key: bytes, digest: str) -> dict[str, str]:
    value = signed_call(key, "r1", Bound("/role", digest), time.time())
    return {"X-Request-Id": "r1", PRIVATE_HEADER: value}


async def post(server: Server, body: bytes, headers: dict[str, str]) -> Any:
    return await server.http.post("/role", content=body, headers=headers)


def error(response: httpx.Response) -> tuple[int, str | None, str]:
    error = response.json()["error"]
    return response.status_code, error.get("param"), error["message"]


async def info(server: Server) -> str:
    lines = (await server.http.get("/metrics")).text.splitlines()
    return "\n".join(line for line in lines if line.startswith("sluice_engine_info{"))


async def test_it_answers_once_the_engine_has_the_role_and_a_second_call_at_once() -> None:
    async with server_of(Role.DECODE) as server:
        answer = (await take_role(server, role="prefill")).json()
        assert answer["role"] == "prefill"
        assert answer["seconds"] >= 0
        (message,) = server.engine.of(TakeRole)
        assert message == TakeRole(Role.PREFILL, router_calls.LAME_DUCK_SECONDS, 0.0)
        report = (await server.http.get("/load")).json()
        assert (report["role"], report["epoch"]) == ("prefill", "e1-prefill")
        assert not report["draining"]
        assert not report["privateCalls"]
        assert 'role="prefill"' in await info(server)
        assert "decode" not in await info(server)
        assert (await take_role(server, role="prefill")).json() == {"role": "prefill", "seconds": 0}
        assert len(server.engine.of(TakeRole)) == 1
        refused = await server.http.post("/v1/completions", json={"model": MODEL, "prompt": "a"})
        assert error(refused)[2].startswith("this engine only computes prompts")


async def test_only_the_router_of_the_service_may_call_it() -> None:
    async with server_of(Role.DECODE) as server:
        assert error(await server.http.post("/role", json={"role": "prefill"})) == (
            403,
            None,
            "X-Sluice-Private: missing; allowed: as the service's router signs it",
        )
        status, _, message = error(await take_role(server, b"x" * 32, role="prefill"))
        assert (status, "not signed" in message) == (403, True)
        other = {"role": "decode"}
        status, _, message = error(await take_role(server, signed=other, role="prefill"))
        assert (status, "another body" in message) == (403, True)
        assert server.engine.of(TakeRole) == []


async def test_a_captured_call_works_neither_on_another_engine_nor_once_more() -> None:
    body = json.dumps({"role": "prefill", "epoch": "e1"}).encode()
    headers = signature(KEY, hashlib.sha256(body).hexdigest())
    async with server_of(Role.DECODE) as server:
        assert (await post(server, body, headers)).json()["role"] == "prefill"
        assert (await take_role(server, role="decode")).json()["role"] == "decode"
        assert error(await post(server, body, headers)) == (
            400,
            "epoch",
            'epoch: "e1" is not allowed; allowed: "e1-decode", that of this engine\'s load report',
        )
        assert server.service.role is Role.DECODE
    async with server_of(Role.DECODE) as other:
        other.service.client.ready = msgspec.structs.replace(READY, epoch="e9")
        assert error(await post(other, body, headers))[:2] == (400, "epoch")
        assert other.engine.of(TakeRole) == []


async def test_a_call_that_waited_is_for_the_life_that_the_engine_has_then() -> None:
    async with server_of(Role.DECODE) as server:
        server.engine.takes_roles = False
        first = asyncio.create_task(take_role(server, role="prefill"))
        await until(lambda: bool(server.engine.of(TakeRole)))
        same = asyncio.create_task(take_role(server, role="prefill"))
        back = asyncio.create_task(take_role(server, role="decode"))
        await asyncio.sleep(0.05)
        server.engine.say(RoleTaken(Role.PREFILL, "e2", 8998))
        assert (await first).json()["role"] == "prefill"
        assert (await same).json() == {"role": "prefill", "seconds": 0}
        assert error(await back)[:2] == (400, "epoch")


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"role": "prefill", "epoch": None}, "epoch", "null is not allowed; allowed: a string"),
        ({"role": "mixed"}, "role", "allowed: 'prefill' or 'decode'"),
        ({}, "role", "role"),
        (
            {"role": "prefill", "drain_seconds": -1},
            "drain_seconds",
            "-1 is not allowed; allowed: a number from 0 to 86400",
        ),
    ],
)
async def test_a_body_that_cannot_be_used_is_refused(
    fields: dict[str, Any], param: str, says: str
) -> None:
    async with server_of(Role.DECODE) as server:
        status, key, message = error(await take_role(server, **fields))
        assert (status, key) == (400, param)
        assert says in message


async def test_engines_that_cannot_have_another_role_keep_theirs() -> None:
    async with server_of(Role.MIXED) as server:
        assert error(await take_role(server, role="decode")) == (
            400,
            "role",
            'role: "decode" is not allowed; allowed: none, as this engine\'s role is "mixed"',
        )
    async with server_of(Role.DECODE) as server:
        of_tcp = server.service.identity
        mooncake = KvTransfer(backend="Mooncake")
        server.service.identity = replace(of_tcp, kv_transfer=mooncake)
        assert error(await take_role(server, role="prefill"))[2] == (
            'role: "prefill" is not allowed; allowed: "decode", as kvTransfer.backend is Mooncake, '
            "and not TCP"
        )
        server.service.identity = replace(of_tcp, tensor_parallel_size=2)
        assert error(await take_role(server, role="prefill")) == (
            400,
            "role",
            'role: "prefill" is not allowed; allowed: "decode", as tensorParallelSize is 2, '
            "and not 1",
        )
        server.service.identity = replace(of_tcp, host_cache=True)
        assert "as it has a hostCache" in error(await take_role(server, role="prefill"))[2]
        assert (await take_role(server, role="decode")).json()["seconds"] == 0


async def test_an_engine_that_drains_keeps_its_role() -> None:
    async with server_of(Role.DECODE) as server:
        server.service.gate.close()
        assert error(await take_role(server, role="prefill"))[0] == 503


async def test_what_runs_too_long_is_aborted_and_handed_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router_calls, "LAME_DUCK_SECONDS", 0.05)
    async with server_of(Role.DECODE) as server:
        server.engine.paused.set()
        server.engine.takes_roles = False
        body = {"model": MODEL, "prompt": "ab"}
        content = httpx.Request("POST", "http://engine", json=body).content
        bound = Bound("/v1/completions", hashlib.sha256(content).hexdigest())
        signed = signed_header(KEY, PREFILL, "r2", time.time(), bound)
        headers = {PREFILL_HEADER: signed, "X-Request-Id": "r2"}
        request = server.http.post("/v1/completions", json=body, headers=headers)
        asked = asyncio.create_task(request)
        await until(lambda: bool(server.engine.running))
        changing = asyncio.create_task(take_role(server, role="prefill", drain_seconds=0.1))
        await until(lambda: server.service.load_report().draining)
        assert server.service.load_report().role is Role.DECODE
        assert error(await asked) == (503, None, router_calls.HANDED_BACK)
        await until(lambda: bool(server.engine.of(Abort)))
        server.engine.say(RoleTaken(Role.PREFILL, "e2", 8998))
        assert (await changing).json()["role"] == "prefill"
        assert server.service.load_report().bootstrap_port == 8998


async def test_an_engine_that_dies_meanwhile_ends_the_call() -> None:
    async with server_of(Role.DECODE) as server:
        server.engine.takes_roles = False
        changing = asyncio.create_task(take_role(server, role="prefill", drain_seconds=0))
        await until(lambda: bool(server.engine.of(TakeRole)))
        await asyncio.to_thread(server.engine.stop)
        assert error(await changing)[0] == 503
