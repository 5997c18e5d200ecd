"""Engines are told whose request it is, signed, and nobody else says so."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sluice_contract.config.router import Auth, Tenant
from sluice_contract.wire.handover import LOOK_SECONDS, Bound
from sluice_contract.wire.private_calls import PRIVATE_HEADER
from sluice_contract.wire.tenants import (
    TENANT_HEADER,
    TenantClaims,
    claims_of,
    signed_tenant,
    verified_tenant,
)
from sluice_router.byte_budget import SMALL_BYTES
from sluice_router.pick import affinity_of

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.runtime.launch import processes

KEY = b"k" * 32
LISTED = (Tenant(name="search", default_priority=3, max_priority=9),)
BODY: dict[str, Any] = {"model": "tiny", "prompt": "x" * 64, "max_tokens": 4}


@asynccontextmanager
async def router_of(
    folder: Path, *urls: str, signs: bool = True, key_file: Path | None = None
) -> AsyncIterator[fakes.RunningRouter]:
    """A router that asks `search` and `chat` for their keys, which are their names."""
    keys = folder / "keys"
    keys.mkdir()
    for name in ("search", "chat"):
        (keys / name).write_text(name)
    if key_file is None:
        key_file = folder / "service-key"
        key_file.write_bytes(KEY)
    auth = Auth(keys_directory=str(keys), tenants=LISTED if signs else None)
    file = str(key_file) if signs else None
    async with fakes.running_router(*urls, auth=auth, handover_key_file=file) as router:
        yield router


async def ask(
    router: fakes.RunningRouter, tenant: str, body: str = json.dumps(BODY), **headers: str
) -> tuple[int, dict[str, Any]]:
    return await post(router.url, {"Authorization": f"Bearer {tenant}"} | headers, body)


async def post(
    url: str, headers: dict[str, str], body: str = json.dumps(BODY)
) -> tuple[int, dict[str, Any]]:
    """Of a router or of an engine."""
    words = {"X-Request-Id": "r1"} | headers
    async with (
        aiohttp.ClientSession() as client,
        client.post(url + "/v1/completions", data=body, headers=words) as response,
    ):
        return response.status, await response.json()


def told(engine: fakes.FakeEngine) -> TenantClaims:
    """What the last call said, as an engine reads it."""
    path, headers, _ = engine.calls[-1]
    return verified_tenant((KEY,), headers[TENANT_HEADER], "r1", path, time.time()).content


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


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("size", [10, 2 * SMALL_BYTES])
async def test_what_is_signed_is_bound_to_path_and_body(
    tmp_path: Path, size: int, private: bool
) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        router_of(tmp_path, engine.url) as router,
    ):
        engine.load = fakes.load_report(private_calls=private)
        await heard(engine)
        body = json.dumps(BODY | {"prompt": "x" * size})
        assert (await ask(router, "search", body=body))[0] == 200
        path, headers, sent = engine.calls[-1]
        assert sent.endswith(body.encode())
        assert (PRIVATE_HEADER in headers) == private
        claims, digest = verified_tenant((KEY,), headers[TENANT_HEADER], "r1", path, time.time())
        assert claims == claims_of(KEY, LISTED[0])
        assert digest == hashlib.sha256(sent).hexdigest()


async def heard(engine: fakes.FakeEngine) -> None:
    """The router has read the engine's report as it is now: it asks again only after that."""
    for _ in range(2):
        engine.polled.clear()
        await asyncio.wait_for(engine.polled.wait(), PATIENCE_SECONDS)


@pytest.mark.parametrize("others", [0, 1])
async def test_no_client_is_told_that_an_engine_wants_a_signature(
    tmp_path: Path, others: int
) -> None:
    """As one beside API keys does, of which this router knows nothing yet."""
    (tmp_path / "key").write_bytes(KEY)
    async with AsyncExitStack() as stack:
        refuses = fakes.refuses(403, code="invalid_signature")
        behaviours = [refuses, *[fakes.answers_json] * others]
        engines = [await stack.enter_async_context(fakes.running_engine(b)) for b in behaviours]
        urls = [engine.url for engine in engines]
        router = await stack.enter_async_context(
            fakes.running_router(*urls, handover_key_file=str(tmp_path / "key"))
        )
        statuses = {(await ask(router, "nobody"))[0] for _ in range(4)}
    assert statuses == ({200} if others else {503})


def test_tenants_prefer_engines_of_their_own() -> None:
    body = json.dumps({"prompt": "y" * 2000}).encode()
    for routing_key in (None, "session"):
        preferences = {affinity_of(routing_key, body, tenant) for tenant in ("", "a", "b")}
        assert len(preferences) == 3


@pytest.mark.process
async def test_keys_are_rotated_under_requests_and_none_is_refused(tmp_path: Path) -> None:
    """A router and an engine beside API keys, each with the Secret as its kubelet mounts it: the
    router's comes first in each step, then the engine's."""
    new = b"n" * 32
    steps = ((KEY, None), (KEY, new), (new, KEY), (new, None))
    folders = [tmp_path / name for name in ("router", "engine")]
    for folder in folders:
        folder.mkdir()
        hold(folder, *steps[0])
    config = processes.write_config(
        tmp_path,
        handoverKeyFile=str(folders[1] / "key"),
        server={"port": 0, "requireSignature": True},
    )
    with processes.running(processes.program(config)) as engine:
        url = engine.ready_url()
        status, answer = await post(url, {})
        assert (status, answer["error"]["code"]) == (403, "invalid_signature")
        async with router_of(tmp_path, url, key_file=folders[0] / "key") as router:
            for step in steps[1:]:
                for folder in folders:
                    hold(folder, *step)
                    until = time.monotonic() + 1.5 * LOOK_SECONDS
                    while time.monotonic() < until:
                        status, answer = await ask(router, "search")
                        assert status == 200, answer
        bound = Bound("/v1/completions", hashlib.sha256(json.dumps(BODY).encode()).hexdigest())
        claims = claims_of(KEY, LISTED[0])
        former = {TENANT_HEADER: signed_tenant(KEY, claims, "r1", time.time(), bound)}
        assert (await post(url, former))[0] == 403


def hold(folder: Path, key: bytes, second: bytes | None) -> None:
    """The folder has these keys from now on, both at once."""
    state = folder / f"..{time.monotonic_ns()}"
    state.mkdir()
    for name, content in (("key", key), ("second-key", second)):
        if content is not None:
            (state / name).write_bytes(content)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data") / name)
    (folder / "..new").symlink_to(state.name)
    (folder / "..new").rename(folder / "..data")


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
