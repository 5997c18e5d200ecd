"""Requests of tenants, as the router signs them: their priority, and their part of the cache."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from sluice_contract.config.router import Tenant
from sluice_contract.wire.handover import Bound
from sluice_contract.wire.private_calls import PRIVATE_HEADER, CallHead, head_line, signed_call
from sluice_contract.wire.tenants import TENANT_HEADER, claims_of, signed_tenant
from sluice_runtime.wire.endpoint import private_endpoint
from sluice_runtime.wire.messages import Generate

from tests.runtime.server.conftest import MODEL, Server, running_server, until
from tests.runtime.server.fake_engine import MOST_QUEUED, MOST_RUNNING

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = b"k" * 32
URGENT = Tenant(name="urgent", default_priority=20, max_priority=50)
LAST = Tenant(name="last", max_priority=-5)
ANY = Tenant(name="any")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_server() -> AsyncIterator[Server]:
    with private_endpoint() as endpoint:
        async with running_server(endpoint, key=KEY) as server:
            yield server


async def ask(
    server: Server, tenant: Tenant | None, *, private: bool = False, key: bytes = KEY, **fields: Any
) -> httpx.Response:
    body = json.dumps({"model": MODEL, "prompt": "ab", "max_tokens": 1, **fields}).encode()
    headers = {"X-Request-Id": "r1"}
    if private:
        body = head_line(CallHead(5)) + body
    bound = Bound("/v1/completions", hashlib.sha256(body).hexdigest())
    if tenant is not None:
        signed = signed_tenant(key, claims_of(KEY, tenant), "r1", time.time(), bound)
        headers[TENANT_HEADER] = signed
    if private:
        headers[PRIVATE_HEADER] = signed_call(KEY, "r1", bound, time.time())
    return await server.http.post("/v1/completions", content=body, headers=headers)


async def generated(server: Server, tenant: Tenant | None, **fields: Any) -> Generate:
    """What the engine process is told."""
    server.engine.heard.clear()
    answer = await ask(server, tenant, **fields)
    assert answer.status_code == 200, answer.text
    (message,) = server.engine.of(Generate)
    assert isinstance(message, Generate)
    return message


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    ("tenant", "asked", "priority"),
    [(None, None, 0), (None, 70, 70), (URGENT, None, 20), (URGENT, 50, 50), (URGENT, -9, -9),
     (LAST, None, -5), (LAST, -6, -6), (ANY, None, 0), (ANY, 1_000_000, 1_000_000)],
)  # fmt: skip
async def test_priorities_are_within_the_tenant_s_bounds(
    server: Server, tenant: Tenant | None, asked: int | None, priority: int, private: bool
) -> None:
    fields = {} if asked is None else {"priority": asked}
    assert (await generated(server, tenant, private=private, **fields)).priority == priority


@pytest.mark.parametrize(("tenant", "asked"), [(URGENT, 51), (LAST, 0)])
@pytest.mark.parametrize("private", [False, True])
async def test_a_higher_one_is_refused_in_openai_s_words(
    server: Server, tenant: Tenant, asked: int, private: bool
) -> None:
    refused = await ask(server, tenant, private=private, priority=asked)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (400, "invalid_request_error")
    assert error["param"] == "priority"
    most = tenant.max_priority
    says = f"priority: {asked} is not allowed; allowed: at most {most} with this API key"
    assert error["message"] == says


async def test_a_tenant_that_has_its_part_of_the_queue_is_told_so_by_code(server: Server) -> None:
    """By the code a router knows that other tenants are served, and that the queue is not full."""
    server.engine.paused.set()
    most = MOST_RUNNING + MOST_QUEUED * 3 // 4
    held = [asyncio.create_task(ask(server, ANY)) for _ in range(most)]
    await until(lambda: len(server.engine.running) == most)
    refused = await ask(server, ANY)
    error = refused.json()["error"]
    assert (refused.status_code, error["type"]) == (429, "rate_limit_error")
    assert (error["code"], refused.headers["retry-after"]) == ("tenant_full", "1")
    assert error["message"].startswith(f"the queue is full for one tenant: {most} of its requests")
    server.engine.paused.clear()
    assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}


async def test_tenants_share_no_cached_prefix_whatever_salt_they_give(server: Server) -> None:
    asked = [(None, None), (URGENT, None), (ANY, None), (URGENT, "s"), (ANY, "s"), (None, "s")]
    salts = [
        (await generated(server, tenant, cache_salt=salt)).cache_salt for tenant, salt in asked
    ]
    assert len(set(salts)) == len(salts)
    assert (await generated(server, URGENT, private=True)).cache_salt == salts[1]


async def test_a_request_without_a_routing_key_has_its_tenant_s(server: Server) -> None:
    """So that round-robin takes turns between tenants."""
    keys = [(await generated(server, tenant)).routing_key for tenant in (None, URGENT, ANY, ANY)]
    assert keys[0] == ""
    assert keys[2] == keys[3]
    assert len(set(keys)) == 3


async def test_what_another_has_signed_is_refused(server: Server) -> None:
    refused = await ask(server, ANY, key=b"x" * 32)
    assert refused.status_code == 403
    assert refused.json()["error"]["code"] == "invalid_signature"
    with private_endpoint() as endpoint:
        async with running_server(endpoint) as keyless:
            refused = await ask(keyless, ANY)
    assert refused.status_code == 403
    assert "allowed: with handoverKeyFile" in refused.text
