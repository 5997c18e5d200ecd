"""What each role serves: a mixed engine anybody, a decode engine the router, a prefill one nobody;
and what engines of a hand-over show of it."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any

import httpx
import msgspec
import pytest
import pytest_asyncio
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.handover import PREFILL_HEADER, Bound, PrefillRef, signed_header
from sluice_contract.wire.load import MEASURED_BYTES, HandoverQueues
from sluice_runtime.handover.messages import HANDOVER_VERSION
from sluice_runtime.wire.endpoint import private_endpoint
from sluice_runtime.wire.messages import Generate, HandoverLoad, Heartbeat, PrefillEngine, Refusal

from tests.runtime.server.conftest import MODEL, Server, running_server, until
from tests.runtime.server.fake_engine import NO_QUEUES, READY, load

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = b"k" * 32
PREFILL = PrefillRef(host="10.0.0.7", port=8998, epoch="e7", name="chat-prefill-x")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": MODEL, "prompt": "ab"},
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "a"}]},
    "/generate": {"text": "ab"},
}
REQUEST_ID = "req-1"


def header(
    path: str = "/v1/completions",
    body: dict[str, Any] | None = None,
    key: bytes = KEY,
    request_id: str = REQUEST_ID,
    age: float = 0.0,
) -> dict[str, str]:
    """As the router sends it with this body."""
    content = httpx.Request("POST", "http://engine", json=body or BODIES[path]).content
    bound = Bound(path, hashlib.sha256(content).hexdigest())
    signed = signed_header(key, PREFILL, request_id, time.time() - age, bound)
    return {PREFILL_HEADER: signed, "X-Request-Id": REQUEST_ID}


@asynccontextmanager
async def server_of(role: Role) -> AsyncIterator[Server]:
    with private_endpoint() as endpoint:
        async with running_server(endpoint, role, KEY) as server:
            yield server


Servers = dict[Role, Server]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        yield {role: await stack.enter_async_context(server_of(role)) for role in Role}


@pytest.fixture
def servers(running: Servers) -> Iterator[Servers]:
    """Servers of the module by role, whose engines have heard nothing yet."""
    for server in running.values():
        server.engine.heard.clear()
    yield running
    for server in running.values():
        server.engine.refuse_with = server.engine.refusal = None


async def refusal(server: Server, path: str, headers: dict[str, str]) -> tuple[int, str, str]:
    response = await server.http.post(path, json=BODIES[path], headers=headers)
    error = response.json()["error"]
    return response.status_code, error["code"], error["message"]


async def test_a_decode_engine_serves_only_what_the_router_signed(servers: Servers) -> None:
    server = servers[Role.DECODE]
    for path, body in BODIES.items():
        status, code, message = await refusal(server, path, {})
        assert (status, code) == (400, "wrong_role")
        assert message == "this engine only decodes; requests go to the service's router"
        assert server.engine.of(Generate) == []
        answer = await server.http.post(path, json=body, headers=header(path, body))
        assert answer.status_code == 200, answer.text
        (generate,) = server.engine.of(Generate)
        assert isinstance(generate, Generate)
        assert generate.prefill == PrefillEngine("10.0.0.7", 8998, "e7", "chat-prefill-x")
        server.engine.heard.clear()


async def test_every_choice_names_the_prefill_engine(servers: Servers) -> None:
    server = servers[Role.DECODE]
    body = {"model": MODEL, "prompt": ["ab", "cd"], "n": 2, "max_tokens": 1}
    sent = header("/v1/completions", body)
    await server.http.post("/v1/completions", json=body, headers=sent)
    heard = [message for message in server.engine.of(Generate) if isinstance(message, Generate)]
    assert [message.prefill and message.prefill.epoch for message in heard] == ["e7"] * 4


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (header(key=b"x" * 32), "not signed by this service's router"),
        (header(request_id="another"), "another request"),
        (header(age=61.0), "more than 60 s ago"),
        ({PREFILL_HEADER: "nonsense", "X-Request-Id": REQUEST_ID}, "not signed"),
        ({PREFILL_HEADER: "\xff.\xff", "X-Request-Id": REQUEST_ID}, "not signed"),
        ({PREFILL_HEADER: "", "X-Request-Id": REQUEST_ID}, "not signed"),
    ],
)
async def test_a_header_that_the_router_did_not_sign_for_the_request_is_refused(
    given: dict[str, str], says: str, servers: Servers
) -> None:
    raw = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    server = servers[Role.DECODE]
    path = "/v1/completions"
    response = await server.http.post(path, json=BODIES[path], headers=raw)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (403, "invalid_signature")
    assert says in error["message"]
    assert server.engine.of(Generate) == []


async def test_a_prefill_engine_serves_no_request(servers: Servers) -> None:
    server = servers[Role.PREFILL]
    for path in BODIES:
        status, code, message = await refusal(server, path, {})
        assert (status, code) == (400, "wrong_role")
        assert "only computes prompts" in message
    assert server.engine.of(Generate) == []


async def test_a_router_that_takes_a_prefill_engine_for_a_decode_engine_asks_another(
    servers: Servers,
) -> None:
    server = servers[Role.PREFILL]
    status, code, message = await refusal(server, "/v1/completions", header())
    assert (status, code) == (503, "unavailable")
    assert message == "this engine only computes prompts, and decoded until a moment ago"


async def test_a_mixed_engine_refuses_the_header(servers: Servers) -> None:
    server = servers[Role.MIXED]
    status, code, message = await refusal(server, "/v1/completions", header())
    assert (status, code) == (400, "wrong_role")
    assert message == f"{PREFILL_HEADER}: not allowed; this engine computes prompts itself"
    answer = await server.http.post("/v1/completions", json=BODIES["/v1/completions"])
    assert answer.status_code == 200


@pytest.mark.parametrize("role", Role)
async def test_every_engine_can_be_asked_whether_it_draws_tokens(
    role: Role, servers: Servers
) -> None:
    server = servers[role]
    assert (await server.http.get("/health_generate")).status_code == 200
    (probe,) = server.engine.of(Generate)
    assert isinstance(probe, Generate)
    assert probe.prefill is None


@pytest.mark.parametrize("code", ["prefill_failed", "prefill_unavailable"])
async def test_a_failed_prefill_has_codes_of_its_own(code: Refusal, servers: Servers) -> None:
    server = servers[Role.DECODE]
    server.engine.refuse_with, server.engine.refusal = "prefill p-1: gone", code
    for stream in (False, True):
        body = BODIES["/v1/completions"] | {"stream": stream}
        sent = header("/v1/completions", body)
        response = await server.http.post("/v1/completions", json=body, headers=sent)
        assert response.status_code == 503
        assert response.headers["retry-after"] == "2"
        error = response.json()["error"]
        assert (error["code"], error["message"]) == (code, "prefill p-1: gone")


async def test_the_load_report_tells_queues_and_where_decode_engines_connect(
    servers: Servers,
) -> None:
    server = servers[Role.PREFILL]
    queues = HandoverQueues(bootstrap=1, inflight=2, prealloc=3, transfer=4)
    server.engine.say(msgspec.structs.replace(READY, bootstrap_port=9123))
    await shown(server, HandoverLoad(), queues)
    report = (await server.http.get("/load")).json()
    assert report["role"] == "prefill"
    assert report["bootstrapPort"] == 9123
    assert report["handoverVersion"] == HANDOVER_VERSION
    assert report["figures"]["queues"] == asdict(queues)


async def test_a_mixed_engine_reports_no_port_and_no_queues(servers: Servers) -> None:
    server = servers[Role.MIXED]
    report = (await server.http.get("/load")).json()
    assert "bootstrapPort" not in report
    assert "handoverVersion" not in report
    assert "handover" not in report
    assert set(report["figures"]["queues"].values()) == {0}


@pytest.mark.parametrize(
    ("read_bytes", "read_seconds", "rate"),
    [(0, 0.0, {}), (MEASURED_BYTES - 1, 0.01, {}), (10**9, 0.81, {"gigabytesPerSecond": 1.2})],
)
async def test_the_load_report_tells_what_carries_pages_and_once_it_is_known_how_fast(
    read_bytes: int, read_seconds: float, rate: dict[str, float], servers: Servers
) -> None:
    server = servers[Role.DECODE]
    await shown(server, HandoverLoad(read_bytes=read_bytes, read_seconds=read_seconds))
    report = (await server.http.get("/load")).json()
    assert report["handover"] == {"backend": "TCP", "protocol": "tcp"} | rate


async def test_the_hand_over_is_in_the_metrics() -> None:
    async with server_of(Role.DECODE) as server:
        for times in (1, 2):  # totals of the engine, so the second report replaces the first
            handover = HandoverLoad(
                recomputed=3 * times,
                read_bytes=1000 * times,
                read_seconds=0.5 * times,
                reads=2 * times,
                failures={"checksum": times},
            )
            await shown(server, handover, HandoverQueues(bootstrap=5, transfer=4))
        text = (await server.http.get("/metrics")).text
    assert metric(text, 'requests{queue="bootstrap"}') == 5
    assert metric(text, 'requests{queue="transfer"}') == 4
    assert metric(text, "recomputed_total") == 6
    assert metric(text, "read_bytes_total") == 2000
    assert metric(text, "read_seconds_total") == 1.0
    assert metric(text, "reads_total") == 4
    assert metric(text, 'failures_total{reason="checksum"}') == 2


async def shown(server: Server, handover: HandoverLoad, queues: HandoverQueues = NO_QUEUES) -> None:
    """The engine reports it, and the server has heard."""
    said = msgspec.structs.replace(load(0, queues=queues), handover=handover)
    server.engine.say(Heartbeat(said))
    await until(lambda: server.service.client.load == said)


def metric(text: str, series: str) -> float:
    found = re.search(rf"^sluice_handover_{re.escape(series)} (\S+)$", text, re.MULTILINE)
    assert found is not None, series
    return float(found[1])
