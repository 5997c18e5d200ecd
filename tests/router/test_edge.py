"""What passes the router's edge, in both directions, and what a browser that runs another origin's
page is told (CORS).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from multidict import CIMultiDict
from sluice_contract.config.cors import Cors
from sluice_contract.config.router import Auth
from sluice_contract.wire.json_weight import MAX_VALUES
from sluice_router.edge import check_body, response_headers
from sluice_router.errors import BadRequestError

from tests.router import fakes

PAGE = "https://chat.example.com"
CHAT = "/v1/chat/completions"
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
}
ALLOWED = "access-control-allow-origin"


def test_hop_by_hop_headers_and_those_they_name_are_dropped() -> None:
    given = {
        "connection": "close, X-Private",
        "Keep-Alive": "timeout=5",
        "Transfer-Encoding": "chunked",
        "x-private": "1",
        "Server": "uvicorn",
        "Content-Type": "application/json",
        "Retry-After": "3",
    }
    passed = response_headers(CIMultiDict(given))
    assert passed == {"Content-Type": "application/json", "Retry-After": "3"}


@pytest.mark.parametrize("body", [b"{}", b'{"prompt": "bootstrap_room", "x": {"kv_a": 1}}'])
def test_only_the_names_of_a_requests_own_fields_are_looked_at(body: bytes) -> None:
    check_body(body)


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b"", b'{"a": 1} x'])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="the body is"):
        check_body(body)


def test_a_long_name_of_control_characters_is_shown_cut_and_escaped() -> None:
    name = "kv_\n\x1b[2J" + "x" * 1_000_000
    with pytest.raises(BadRequestError) as caught:
        check_body(msgspec.json.encode({name: 1}))
    for text in (str(caught.value), caught.value.param):
        assert text is not None
        assert text.startswith("kv_\\n\\x1b[2Jx")
        assert len(text) < 200


def test_a_body_of_very_many_keys_is_refused_before_it_is_decoded() -> None:
    many = {f"k{number}": 1 for number in range(MAX_VALUES + 1)}
    with pytest.raises(BadRequestError, match=r"^the body: holds too many values; allowed: 65536"):
        check_body(msgspec.json.encode(many))
    text = '"\\' * MAX_VALUES
    check_body(msgspec.json.encode({"prompt": text}))


@asynccontextmanager
async def _client(keys: Path, *origins: str) -> AsyncIterator[httpx.AsyncClient]:
    """Of a router that asks for keys, with a stream behind it."""
    (keys / "team").write_text("the-key")
    cors = Cors(allowed_origins=list(origins)) if origins else None
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url, auth=Auth(keys_directory=str(keys)), cors=cors) as router,
        httpx.AsyncClient(base_url=router.url) as client,
    ):
        yield client


async def test_a_preflight_needs_no_key_and_allows_what_it_asks_for(tmp_path: Path) -> None:
    async with _client(tmp_path, PAGE) as client:
        answer = await client.options(CHAT, headers=PREFLIGHT)
        assert answer.status_code == 204
        assert answer.headers[ALLOWED] == PAGE
        assert "POST" in answer.headers["access-control-allow-methods"]
        asked = PREFLIGHT["Access-Control-Request-Headers"]
        assert answer.headers["access-control-allow-headers"] == asked
        assert "Origin" in answer.headers["vary"]
        assert "access-control-allow-credentials" not in answer.headers


async def test_a_page_may_read_streams_and_errors(tmp_path: Path) -> None:
    async with _client(tmp_path, PAGE) as client:
        body = {"model": "m", "messages": [], "stream": True}
        keyed = {"Origin": PAGE, "Authorization": "Bearer the-key"}
        stream = await client.post(CHAT, json=body, headers=keyed)
        refused = await client.post(CHAT, json=body, headers={"Origin": PAGE})
    assert (stream.status_code, refused.status_code) == (200, 401)
    for answer in (stream, refused):
        assert answer.headers[ALLOWED] == PAGE
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


async def test_another_origin_is_told_nothing(tmp_path: Path) -> None:
    async with _client(tmp_path, PAGE) as client:
        other = PREFLIGHT | {"Origin": "https://other.example.com"}
        answer = await client.options(CHAT, headers=other)
    assert ALLOWED not in answer.headers
    assert "Origin" in answer.headers["vary"], "a cache must not serve it to the page"


async def test_any_origin_may_be_allowed(tmp_path: Path) -> None:
    async with _client(tmp_path, "*") as client:
        answer = await client.options(CHAT, headers=PREFLIGHT)
    assert answer.headers[ALLOWED] == "*"


async def test_without_the_setting_a_preflight_is_like_any_wrong_method(tmp_path: Path) -> None:
    async with _client(tmp_path) as client:
        answer = await client.options(CHAT, headers=PREFLIGHT)
    assert answer.status_code == 401
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "origin", ["chat.example.com", "https://a.example/path", "", "https://*.a"]
)
def test_an_origin_is_a_scheme_and_a_host(origin: str) -> None:
    with pytest.raises(ValueError, match="allowed"):
        Cors(allowed_origins=[origin])
