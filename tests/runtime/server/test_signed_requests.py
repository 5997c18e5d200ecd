"""An engine beside API keys serves the service's router alone, and each signed header is good for
one path and one body.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio
from sluice_contract.cluster.labels import Role
from sluice_contract.config.router import Tenant
from sluice_contract.wire.handover import PREFILL_HEADER, Bound, PrefillRef, signed_header
from sluice_contract.wire.private_calls import PRIVATE_HEADER, CallHead, head_line, signed_call
from sluice_contract.wire.tenants import TENANT_HEADER, claims_of, signed_tenant
from sluice_runtime.wire.endpoint import private_endpoint
from sluice_runtime.wire.messages import Generate

from tests.runtime.server.conftest import MODEL, Server, running_server

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = b"k" * 32
COMPLETIONS = "/v1/completions"
BODY = json.dumps({"model": MODEL, "prompt": "ab", "max_tokens": 1}).encode()
BODIES = {
    COMPLETIONS: BODY,
    "/v1/chat/completions": b'{"model":"echo","messages":[{"role":"user","content":"a"}]}',
    "/v1/responses": b'{"model":"echo","input":"a"}',
    "/generate": b'{"text":"a"}',
    "/abort_request": b'{"request_id":"x"}',
    "/flush_cache": b"",
    "/tokenize": b'{"prompt":"a"}',
    "/detokenize": b'{"tokens":[97]}',
}
MESSAGES = {
    "/v1/messages": b'{"model":"echo","max_tokens":1,"messages":[{"role":"user","content":"a"}]}',
    "/v1/messages/count_tokens": b'{"model":"echo","messages":[{"role":"user","content":"a"}]}',
}
"""Bodies of routes that answer in Anthropic's form."""
MISSING = (
    "X-Sluice-Tenant: missing; allowed: as the service's router signs it, to which requests go"
)
PREFILL = PrefillRef(host="10.0.0.7", port=8998, epoch="e7")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_server() -> AsyncIterator[Server]:
    with private_endpoint() as endpoint:
        async with running_server(endpoint, key=KEY, required=True) as server:
            yield server


def tenant_header(body: bytes, path: str = COMPLETIONS) -> dict[str, str]:
    """As the router signs it."""
    claims = claims_of(KEY, Tenant(name="a"))
    return {TENANT_HEADER: signed_tenant(KEY, claims, "r1", time.time(), bound_to(body, path))}


def bound_to(body: bytes, path: str = COMPLETIONS) -> Bound:
    return Bound(path, hashlib.sha256(body).hexdigest())


async def post(
    server: Server, path: str, body: bytes, headers: dict[str, str] | None = None
) -> httpx.Response:
    sent = {"X-Request-Id": "r1", **(headers or {})}
    return await server.http.post(path, content=body, headers=sent)


def refusal(response: httpx.Response) -> tuple[int, str, str]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


@pytest.mark.parametrize("role", Role)
async def test_unsigned_requests_are_refused_in_every_role(role: Role) -> None:
    with private_endpoint() as endpoint:
        async with running_server(endpoint, role, KEY, required=True) as server:
            for path, body in BODIES.items():
                refused = refusal(await post(server, path, body))
                assert refused == (403, "invalid_signature", MISSING)
            for path, body in MESSAGES.items():
                answer = await post(server, path, body)
                assert (answer.status_code, answer.json()["error"]["message"]) == (403, MISSING)
            assert server.engine.of(Generate) == []


async def test_what_the_router_signed_is_served(server: Server) -> None:
    for path, body in (BODIES | MESSAGES).items():
        answer = await post(server, path, body, tenant_header(body, path))
        assert answer.status_code == 200, answer.text


async def test_probes_and_models_need_no_signature(server: Server) -> None:
    for path in ("/health", "/ready", "/load", "/metrics", "/health_generate", "/v1/models"):
        assert (await server.http.get(path)).status_code == 200


async def test_a_router_that_asks_for_no_keys_yet_is_served(server: Server) -> None:
    """While `auth` comes or goes, routers and engines do not change at the same time."""
    body = head_line(CallHead(5)) + BODY
    signed = {PRIVATE_HEADER: signed_call(KEY, "r1", bound_to(body), time.time())}
    assert (await post(server, COMPLETIONS, body, signed)).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [(COMPLETIONS, BODY + b" ", "another body"), ("/generate", BODY, "another path")],
)
async def test_a_replayed_header_is_good_for_no_other_request(
    server: Server, path: str, body: bytes, says: str
) -> None:
    claimed = refusal(await post(server, path, body, tenant_header(BODY)))
    assert claimed == (403, "invalid_signature", f"{TENANT_HEADER}: signed for {says}")
    headers = {PREFILL_HEADER: signed_header(KEY, PREFILL, "r1", time.time(), bound_to(BODY))}
    with private_endpoint() as endpoint:
        async with running_server(endpoint, Role.DECODE, KEY) as decode:
            assert (await post(decode, COMPLETIONS, BODY, headers)).status_code == 200
            decode.engine.heard.clear()
            claimed = refusal(await post(decode, path, body, headers))
            assert decode.engine.of(Generate) == []
    assert claimed == (403, "invalid_signature", f"{PREFILL_HEADER}: signed for {says}")


async def test_a_private_call_s_tenant_is_bound_to_all_of_its_body(server: Server) -> None:
    body = head_line(CallHead(5)) + BODY
    signed = {PRIVATE_HEADER: signed_call(KEY, "r1", bound_to(body), time.time())}
    answer = await post(server, COMPLETIONS, body, signed | tenant_header(body))
    assert answer.status_code == 200
    claimed = refusal(await post(server, COMPLETIONS, body, signed | tenant_header(BODY)))
    assert claimed == (403, "invalid_signature", f"{TENANT_HEADER}: signed for another body")
