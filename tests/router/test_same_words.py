"""Router and engine, sent the same mistakes: the client cannot tell which of them refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from sluice_contract.http_heads import MAX_HEADER_BYTES, MAX_HEADERS
from sluice_runtime.wire.endpoint import private_endpoint

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.runtime.server.conftest import MAX_BODY_BYTES, running_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETIONS = "/v1/completions"
ANSWER_HEADERS = ("allow", "connection", "content-type", "retry-after")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both() -> AsyncIterator[tuple[httpx.AsyncClient, httpx.AsyncClient]]:
    """A client of a router and one of an engine; the router has no engine to ask."""
    with private_endpoint() as endpoint:
        async with (
            running_server(endpoint) as engine,
            fakes.running_router(
                "http://127.0.0.1:9", server={"max_body_bytes": MAX_BODY_BYTES}
            ) as router,
            httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_SECONDS) as to_router,
        ):
            yield to_router, engine.http


@dataclass(frozen=True)
class Mistake:
    """A request, and how it is refused."""

    status: int
    code: str
    body: bytes = b"{}"
    method: str = "POST"
    path: str = COMPLETIONS
    headers: dict[str, str] = field(default_factory=dict)
    announced: bool = True


MISTAKES = {
    "no body": Mistake(400, "invalid_json", b""),
    "not JSON": Mistake(400, "invalid_json", b'{"model": "m",'),
    "more than JSON": Mistake(400, "invalid_json", b'{"a": 1} x'),
    "not UTF-8": Mistake(400, "invalid_json", b"\xff\xfe"),
    "not a number": Mistake(400, "invalid_json", b'{"temperature": NaN}'),
    "too deep": Mistake(400, "invalid_json", b'{"prompt": ' + b"[" * 20_000),
    "a list": Mistake(400, "invalid_json", b"[1, 2]"),
    "a long string": Mistake(400, "invalid_json", b'"' + b"x" * 500 + b'"'),
    "many lists": Mistake(400, "invalid_json", b"[" + b"[]," * 20_000 + b"[]]"),
    "wrong at its far end": Mistake(400, "invalid_json", b'{"prompt": "' + b"x" * 60_000),
    "null": Mistake(400, "invalid_json", b"null", path="/v1/chat/completions"),
    "unknown route": Mistake(404, "not_found", path="/v1/nowhere"),
    "another task": Mistake(404, "not_found", path="/v1/embeddings"),
    "unknown escaped route": Mistake(404, "not_found", path="/v1/a%20b?c=d", method="GET"),
    "very long unknown route": Mistake(404, "not_found", path="/" + "x" * 500, method="GET"),
    "wrong method": Mistake(405, "method_not_allowed", method="GET"),
    "another wrong method": Mistake(405, "method_not_allowed", method="DELETE"),
    "posted models": Mistake(405, "method_not_allowed", path="/v1/models"),
    "too large": Mistake(413, "body_too_large", b"x" * (MAX_BODY_BYTES + 1)),
    "too large, unannounced": Mistake(
        413, "body_too_large", b"x" * (MAX_BODY_BYTES + 1), announced=False
    ),
    "compressed": Mistake(415, "unsupported_encoding", headers={"Content-Encoding": "GZIP"}),
    "long target": Mistake(
        414, "target_too_long", path="/v1/models?" + "x" * MAX_HEADER_BYTES, method="GET"
    ),
    "long header": Mistake(
        431, "header_too_large", headers={"X-Long": "x" * MAX_HEADER_BYTES}, path="/health"
    ),
    "many headers": Mistake(
        431, "too_many_headers", headers={f"X-{n}": "1" for n in range(MAX_HEADERS + 1)}
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
async def test_a_mistake_is_told_alike(
    both: tuple[httpx.AsyncClient, httpx.AsyncClient], mistake: Mistake
) -> None:
    from_router, from_engine = [await answer(client, mistake) for client in both]
    assert from_router == from_engine
    status, error, _ = from_router
    assert (status, error["code"], error["param"]) == (mistake.status, mistake.code, None)
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) < 200


async def answer(
    client: httpx.AsyncClient, mistake: Mistake
) -> tuple[int, dict[str, Any], dict[str, str | None]]:
    async def parts() -> AsyncIterator[bytes]:
        yield mistake.body

    body = mistake.body if mistake.announced else parts()
    request = client.build_request(
        mistake.method, mistake.path, content=body, headers=mistake.headers
    )
    response = await client.send(request)
    assert response.headers["x-request-id"]
    headers = {name: response.headers.get(name) for name in ANSWER_HEADERS}
    headers["content-type"] = response.headers["content-type"].partition(";")[0]
    return response.status_code, response.json()["error"], headers


async def test_an_engine_tells_bytes_that_are_no_request_in_json(
    both: tuple[httpx.AsyncClient, httpx.AsyncClient],
) -> None:
    where = urlsplit(str(both[1].base_url))
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(b"this is no request\r\n\r\n")
    head, _, body = (await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)).partition(b"\r\n\r\n")
    writer.close()
    response = httpx.Response(int(head.split()[1]), content=body)
    assert response.status_code == 400
    assert b"content-type: application/json" in head
    assert response.json()["error"]["message"] == "this is not a valid HTTP request"
