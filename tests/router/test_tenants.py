"""Engines are told whose request it is, signed, and nobody else says so."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sluice_contract.router_config import Auth
from sluice_contract.tenants import TENANT_HEADER, Tenant, TenantClaims, claims_of, verified_tenant
from sluice_router.affinity import affinity_of

from tests.router import fakes
from tests.runtime.launch import processes

KEY = b"k" * 32
LISTED = (Tenant(name="search", default_priority=3, max_priority=9),)
BODY: dict[str, Any] = {"model": "tiny", "prompt": "x" * 64, "max_tokens": 4}


@asynccontextmanager
async def router_of(
    folder: Path, *urls: str, signs: bool = True
) -> AsyncIterator[fakes.RunningRouter]:
    """A router that asks `search` and `chat` for their keys, which are their names."""
    keys = folder / "keys"
    keys.mkdir()
    for name in ("search", "chat"):
        (keys / name).write_text(name)
    (folder / "service-key").write_bytes(KEY)
    auth = Auth(keys_directory=str(keys), tenants=LISTED if signs else None)
    file = str(folder / "service-key") if signs else None
    async with fakes.running_router(*urls, auth=auth, handover_key_file=file) as router:
        yield router


async def ask(
    router: fakes.RunningRouter, tenant: str, **headers: str
) -> tuple[int, dict[str, Any]]:
    words = {"Authorization": f"Bearer {tenant}", "X-Request-Id": "r1"} | headers
    async with (
        aiohttp.ClientSession() as client,
        client.post(router.url + "/v1/completions", json=BODY, headers=words) as response,
    ):
        return response.status, await response.json()


def told(engine: fakes.FakeEngine) -> TenantClaims:
    """What the last call said, as an engine reads it."""
    _, headers, _ = engine.calls[-1]
    return verified_tenant(KEY, headers[TENANT_HEADER], "r1", time.time())


async def test_engines_are_told_the_tenant_s_bounds_and_salt(tmp_path: Path) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        router_of(tmp_path, engine.url) as router,
    ):
        assert (await ask(router, "search"))[0] == 200
        assert told(engine) == claims_of(KEY, LISTED[0])
        assert (await ask(router, "chat", **{TENANT_HEADER: "forged"}))[0] == 200
        assert told(engine) == claims_of(KEY, Tenant(name="chat", max_priority=0))


async def test_without_a_key_to_sign_with_engines_know_no_tenant(tmp_path: Path) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        router_of(tmp_path, engine.url, signs=False) as router,
    ):
        assert (await ask(router, "search"))[0] == 200
        assert TENANT_HEADER not in engine.calls[-1][1]


@pytest.mark.parametrize("others", [0, 1])
async def test_no_engine_serves_a_tenant_as_nobody_s(tmp_path: Path, others: int) -> None:
    """One with another key is passed over; where there is none but those, the client is told."""
    async with AsyncExitStack() as stack:
        refuses = fakes.refuses(403, code="invalid_signature")
        engines = [await stack.enter_async_context(fakes.running_engine(refuses))]
        for _ in range(others):
            engines.append(
                await stack.enter_async_context(fakes.running_engine(fakes.answers_json))
            )
        urls = [engine.url for engine in engines]
        router = await stack.enter_async_context(router_of(tmp_path, *urls))
        answers = [await ask(router, "search") for _ in range(4)]
    if others:
        assert [status for status, _ in answers] == [200] * 4
    else:
        assert {status for status, _ in answers} == {503}
        assert "invalid_signature" in {answer["error"]["code"] for _, answer in answers}
        assert all(TENANT_HEADER in headers for _, headers, _ in engines[0].calls)


def test_tenants_prefer_engines_of_their_own() -> None:
    body = json.dumps({"prompt": "y" * 2000}).encode()
    for routing_key in (None, "session"):
        preferences = {affinity_of(routing_key, body, tenant) for tenant in ("", "a", "b")}
        assert len(preferences) == 3


@pytest.mark.process
async def test_the_prefix_cache_of_a_real_engine_is_parted(tmp_path: Path) -> None:
    key = tmp_path / "engine-key"
    key.write_bytes(KEY)
    config = processes.write_config(tmp_path, handoverKeyFile=str(key))
    with processes.running(processes.program(config)) as engine:
        url = engine.ready_url()
        async with router_of(tmp_path, url) as router:
            cached = []
            for tenant in ("search", "search", "chat"):
                status, answer = await ask(router, tenant)
                assert status == 200, answer
                cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == cached[2] == 0
    assert cached[1] > 0
