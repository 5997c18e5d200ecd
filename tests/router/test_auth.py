"""API keys: who may send requests, from the first route to the last."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import aiohttp
import openai
import pytest
from sluice_contract.base import ConfigError
from sluice_contract.config.router import Auth
from sluice_router.accounting import PUBLIC
from sluice_router.app import build_app
from sluice_router.auth import LOOK_SECONDS, ApiKeys, UnauthorizedError
from sluice_router.engines import Fleet
from sluice_router.serve import _parts

from tests.router import fakes

BODY = b'{"model": "m", "prompt": "x"}'


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Mounted:
    """A Secret as the kubelet mounts it: files are links, and a change is another folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0

    def holds(self, **keys: str) -> None:
        self._number += 1
        version = self.folder / f"..version-{self._number}"
        version.mkdir()
        for tenant, key in keys.items():
            (version / tenant).write_text(key)
        new = self.folder / "..new"
        new.symlink_to(version.name)
        new.rename(self.folder / "..data")
        for path in self.folder.iterdir():
            if not path.name.startswith("..") and path.name not in keys:
                path.unlink()
        for tenant in keys:
            link = self.folder / tenant
            if not link.is_symlink():
                link.symlink_to(f"..data/{tenant}")


@pytest.fixture
def secret(tmp_path: Path) -> Mounted:
    mounted = Mounted(tmp_path)
    mounted.holds(team_a="first-key\n", team_b="second-key")
    return mounted


def test_a_key_says_whose_it_is(secret: Mounted) -> None:
    keys = ApiKeys(secret.folder, Clock())
    assert keys.tenant("Bearer first-key") == "team_a"
    assert keys.tenant("bearer  second-key ") == "team_b"


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", "Basic first-key", "first-key", "Bearer first-ke",
     "Bearer first-keyy", "Bearer first-key second-key", "Bearer \udcff\u00e9"],
)  # fmt: skip
def test_nothing_else_does(secret: Mounted, given: str | None) -> None:
    with pytest.raises(UnauthorizedError) as caught:
        ApiKeys(secret.folder, Clock()).tenant(given)
    assert "first-ke" not in str(caught.value), "what was sent is not told"


def test_keys_follow_the_secret(secret: Mounted) -> None:
    clock = Clock()
    keys = ApiKeys(secret.folder, clock)
    secret.holds(team_a="other-key", team_c="third-key")
    clock.now += LOOK_SECONDS
    assert keys.tenant("Bearer other-key") == "team_a"
    assert keys.tenant("Bearer third-key") == "team_c"
    for gone in ("first-key", "second-key"):
        with pytest.raises(UnauthorizedError):
            keys.tenant(f"Bearer {gone}")


def test_while_the_folder_cannot_be_read_keys_stay(secret: Mounted) -> None:
    clock = Clock()
    keys = ApiKeys(secret.folder, clock)
    secret.folder.rename(secret.folder.with_name("away"))
    clock.now += LOOK_SECONDS
    assert keys.tenant("Bearer first-key") == "team_a"
    secret.folder.with_name("away").rename(secret.folder)
    secret.holds(team_a="other-key")
    clock.now += LOOK_SECONDS
    assert keys.tenant("Bearer other-key") == "team_a"


def test_an_empty_key_opens_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "team_a").write_text(" \n")
    keys = ApiKeys(tmp_path, Clock())
    assert "team_a" in caplog.text
    for given in ("Bearer ", "Bearer  \n"):
        with pytest.raises(UnauthorizedError):
            keys.tenant(given)


def test_without_the_folder_no_router_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keysDirectory"):
        ApiKeys(tmp_path / "none", Clock())


def test_every_key_is_compared_in_constant_time(secret: Mounted) -> None:
    keys = ApiKeys(secret.folder, Clock())
    for given in ("first-key", "second-key", "wrong"):
        with patch.object(hmac, "compare_digest", wraps=hmac.compare_digest) as compared:
            try:
                keys.tenant(f"Bearer {given}")
            except UnauthorizedError:
                assert given == "wrong"
            assert compared.call_count == 2


def _routes(folder: Path) -> Iterator[tuple[str, str]]:
    """Every route that clients see, and one that is not there."""
    config = fakes.router_config("http://127.0.0.1:1", auth=Auth(keys_directory=str(folder)))
    app = build_app(_parts(config, None, Fleet(Clock()), None), 1024)  # type: ignore[arg-type]
    for route in app.router.routes():
        assert route.resource is not None
        yield route.method, route.resource.canonical.replace("{name}", "m")
    yield "GET", "/nowhere"
    yield "POST", "/health"


async def test_every_route_but_probe_and_pages_asks_for_a_key(secret: Mounted) -> None:
    auth = Auth(keys_directory=str(secret.folder))
    asked = set()
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url, auth=auth) as router,
        aiohttp.ClientSession() as client,
    ):
        for method, path in _routes(secret.folder):
            async with client.request(method, router.url + path, data=BODY) as response:
                if path in PUBLIC and method in ("GET", "HEAD"):
                    assert response.status == 200
                    continue
                assert response.status == 401, (method, path)
                assert response.headers["WWW-Authenticate"] == "Bearer"
                error = (await response.json())["error"]
                kind = "authentication_error" if "messages" in path else "invalid_request_error"
                assert (error["type"], error["code"]) == (kind, "invalid_api_key")
                asked.add(path)
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models"} <= asked
    assert not [path for path, _, _ in engine.calls if path.startswith("/v1")]


async def test_a_key_opens_the_door_and_goes_no_further(
    secret: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url, auth=Auth(keys_directory=str(secret.folder))) as router,
        aiohttp.ClientSession(headers={"Authorization": "Bearer second-key"}) as client,
        client.post(router.url + "/v1/completions", data=BODY) as response,
    ):
        assert response.status == 200
        ((_, headers, _),) = engine.calls
        assert "Authorization" not in headers
    assert "tenant=team_b" in caplog.text
    assert "second-key" not in caplog.text


async def test_openai_s_client_is_told_in_its_own_words(secret: Mounted) -> None:
    async with (
        fakes.running_engine(fakes.answers_json) as engine,
        fakes.running_router(engine.url, auth=Auth(keys_directory=str(secret.folder))) as router,
        openai.AsyncOpenAI(base_url=router.url + "/v1", api_key="wrong") as client,
    ):
        with pytest.raises(openai.AuthenticationError, match="Incorrect API key provided"):
            await client.completions.create(model="m", prompt="x")
