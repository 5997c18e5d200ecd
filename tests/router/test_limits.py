"""Memory is bounded, whatever clients send and however slowly: caps, time limits, 429 and 408.
Tenants share it: one below its share passes while another fills the router.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from random import Random

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.config.router import Auth
from sluice_contract.wire.private_calls import AnswerStart, EventComment, comment_line
from sluice_router import app, gate
from sluice_router.byte_budget import SMALL_BYTES, Body, ByteBudget
from sluice_router.errors import OverloadedError
from sluice_router.lifecycle import Lifecycle

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.raw_client import RawConnection, raw_connection
from tests.router.test_process import running

KIBIBYTE = 1024
MEBIBYTE = 1024 * 1024
LATE_SECONDS = 0.5
"""Long enough for a client that does send something to have done so."""
LARGE = b'{"prompt": "' + b"x" * (4 * MEBIBYTE) + b'"}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"


async def all_but_one_byte_of(connection: RawConnection, body: bytes) -> None:
    connection.writer.write(HEAD % len(body) + body[:-1])
    await connection.writer.drain()


async def first_answers(*waiting: RawConnection, at_least: int = 1) -> list[int]:
    """Statuses of what came so far, once so many came."""
    tasks = [asyncio.create_task(connection.answer()) for connection in waiting]
    async with asyncio.timeout(PATIENCE_SECONDS):
        for count, answered in enumerate(asyncio.as_completed(tasks), 1):
            await answered
            if count == at_least:
                break
    await asyncio.wait(tasks, timeout=0.5)
    done = [task.result().status for task in tasks if task.done()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return done


@pytest.mark.process
async def test_slow_uploads_fill_a_part_of_the_budget_and_nothing_more(tmp_path: Path) -> None:
    """30 clients hold back the last byte of 4 MiB each; a budget of 36 MiB takes 5 of them."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.streams))
        config = tmp_path / "router.json"
        server = fakes.LOOPBACK | {"drainSeconds": 0.1, "maxBufferedBytes": 36 * MEBIBYTE}
        config.write_text(json.dumps({"engines": [engine.url], "server": server}))
        router = await stack.enter_async_context(running(config))
        before = router.resident_mebibytes()
        slow = [await stack.enter_async_context(raw_connection(router.url)) for _ in range(30)]
        await asyncio.gather(*(all_but_one_byte_of(one, LARGE) for one in slow))
        refused = await first_answers(*slow, at_least=30 - 5)
        assert set(refused) == {429}
        assert router.resident_mebibytes() - before < 40
        async with raw_connection(router.url) as small:
            answer = await small.ask()
            assert (answer.status, answer.body[-len(fakes.DONE) :]) == (200, fakes.DONE)


async def test_a_body_is_let_go_when_its_answer_begins() -> None:
    """Six streams at once, each begun by 4 MiB, with a budget for one."""
    server = {"max_buffered_bytes": 7 * MEBIBYTE}
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.streams_when_let))
        router = await stack.enter_async_context(fakes.running_router(engine.url, server=server))
        streams = []
        for _ in range(6):
            stream = await stack.enter_async_context(raw_connection(router.url))
            stream.writer.write(HEAD % len(LARGE) + LARGE)
            head = await asyncio.wait_for(stream.reader.readuntil(b"\r\n\r\n"), PATIENCE_SECONDS)
            assert b" 200 " in head
            streams.append(stream)
        engine.gate.set()
        for stream in streams:
            rest = await asyncio.wait_for(stream.reader.readuntil(b"0\r\n\r\n"), PATIENCE_SECONDS)
            assert fakes.DONE in rest
        assert [body for _, _, body in engine.calls] == [LARGE] * 6


async def answers_whole(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    """To a private call, an answer of 30 MiB that was not asked for as events."""
    response = await fakes.start_stream(request)
    start = AnswerStart("c", 1, "ab", [1], 1, "m1")
    await response.write(comment_line(EventComment(start, last=True)) + b'data: {"text":"')
    for _ in range(30):
        await response.write(b"x" * MEBIBYTE)
    await response.write(b'"}\n\n' + fakes.DONE)
    return response


@pytest.mark.process
@pytest.mark.parametrize(("budget_mebibytes", "status"), [(64, 200), (16, 429)])
async def test_an_answer_that_is_not_streamed_is_held_once_and_counted(
    tmp_path: Path, budget_mebibytes: int, status: int
) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(answers_whole))
        engine.load = fakes.load_report(private_calls=True, answer_identity="m1")
        server = fakes.LOOPBACK | {"maxBufferedBytes": budget_mebibytes * MEBIBYTE}
        key = str(tmp_path / "key")
        content = {"engines": [engine.url], "handoverKeyFile": key, "server": server}
        config = tmp_path / "router.json"
        config.write_text(json.dumps(content))
        router = await stack.enter_async_context(running(config))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        await asyncio.wait_for(engine.polled.wait(), PATIENCE_SECONDS)
        before = router.resident_mebibytes()
        async with client.post(router.url + "/v1/completions", data=b'{"prompt":"x"}') as answer:
            assert answer.status == status
            length = sum([len(piece) async for piece in answer.content.iter_any()])
            assert (length > 30 * MEBIBYTE) == (status == 200)
        assert router.peak_mebibytes() - before < 60


async def test_requests_beyond_the_cap_are_answered_429_until_one_ends() -> None:
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url, server={"max_requests": 1}) as router,
        raw_connection(router.url) as running_one,
        raw_connection(router.url) as other,
    ):
        first = asyncio.create_task(running_one.ask())
        await asyncio.wait_for(engine.asked.wait(), PATIENCE_SECONDS)
        refused = await other.ask()
        assert refused.status == 429
        assert b"Retry-After: 1" in refused.headers
        assert json.loads(refused.body)["error"]["code"] == "router_full"
        engine.gate.set()
        assert (await first).status == 200
        assert (await other.ask()).status == 200


async def test_connections_beyond_the_cap_are_answered_429_where_none_idles() -> None:
    async with (
        fakes.running_engine(fakes.streams_when_let) as engine,
        fakes.running_router(engine.url, server={"max_connections": 1}) as router,
        raw_connection(router.url) as first,
    ):
        asked = asyncio.create_task(first.ask())
        await asyncio.wait_for(engine.asked.wait(), PATIENCE_SECONDS)
        async with raw_connection(router.url) as second:
            refused = await second.answer()
            assert (refused.status, refused.closes) == (429, True)
        engine.gate.set()
        assert (await asked).status == 200
        assert (await first.ask()).status == 200


@pytest.mark.parametrize("answered_before", [False, True])
async def test_a_head_that_does_not_end_is_answered_408(
    answered_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        fakes.running_engine(fakes.streams) as engine,
        fakes.running_router(engine.url) as router,
        AsyncExitStack() as stack,
    ):
        if not answered_before:
            monkeypatch.setattr(gate, "HEAD_SECONDS", LATE_SECONDS)
        slow = await stack.enter_async_context(raw_connection(router.url))
        if answered_before:
            assert (await slow.ask()).status == 200
            monkeypatch.setattr(gate, "HEAD_SECONDS", LATE_SECONDS)
        slow.writer.write(b"POST /v1/completions HTTP/1.1\r\nX-A: ")
        answer = await asyncio.wait_for(slow.answer(), PATIENCE_SECONDS)
        assert (answer.status, answer.closes) == (408, True)
        assert json.loads(answer.body)["error"]["code"] == "head_timeout"
        assert await slow.reader.read() == b""


async def test_heads_count_against_the_budget_until_they_are_complete() -> None:
    endless = b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(
        b"X-%d: " % n + b"x" * 8000 + b"\r\n" for n in range(15)
    )
    async with (
        fakes.running_router("http://127.0.0.1:9", server={"max_buffered_bytes": 3_000_000}) as up,
        AsyncExitStack() as stack,
    ):
        slow = [await stack.enter_async_context(raw_connection(up.url)) for _ in range(5)]
        for connection in slow:
            connection.writer.write(endless)
        refused = await first_answers(*slow, at_least=2)
        assert set(refused) == {429}
        assert len(refused) in (2, 3)
        for connection in slow:
            connection.writer.transport.abort()
        for _ in range(10):  # more than the budget, one after the other
            async with raw_connection(up.url) as connection:
                connection.writer.write(endless + b"\r\n")
                assert (await connection.answer()).status == 200


async def test_a_silent_new_connection_is_closed_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gate, "HEAD_SECONDS", LATE_SECONDS)
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        raw_connection(router.url) as silent,
    ):
        assert await asyncio.wait_for(silent.reader.read(), PATIENCE_SECONDS) == b""


async def test_a_body_that_does_not_end_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_SECONDS", LATE_SECONDS)
    async with (
        fakes.running_router("http://127.0.0.1:9") as router,
        raw_connection(router.url) as slow,
    ):
        slow.writer.write(HEAD % 100 + b"{")
        answer = await asyncio.wait_for(slow.answer(), PATIENCE_SECONDS)
        assert (answer.status, answer.closes) == (408, True)
        assert json.loads(answer.body)["error"]["code"] == "body_timeout"


def served(lifecycle: Lifecycle, tenant: str | None, most: int) -> list[ExitStack]:
    """As many requests of the tenant as are taken, `most` at the most."""
    taken: list[ExitStack] = []
    for _ in range(most):
        request = ExitStack()
        try:
            request.enter_context(lifecycle.served(tenant))
        except OverloadedError:
            break
        taken.append(request)
    return taken


def test_a_tenant_leaves_a_reserve_to_those_below_their_share() -> None:
    lifecycle = Lifecycle(10.0, 16)
    greedy = served(lifecycle, "a", 99)
    assert len(greedy) == 12
    with pytest.raises(OverloadedError) as refused, lifecycle.served("a"):
        pass
    assert str(refused.value) == (
        "your requests: 12 are served and 1 more comes; allowed while less than a quarter of 16 "
        "(server.maxRequests) is free: 8, your share"
    )
    assert refused.value.headers["Retry-After"] == "1"
    others = served(lifecycle, "b", 99)
    assert len(others) == 4
    for request in greedy[:5]:  # what ends goes to those below their share, until all have one
        request.close()
        assert not served(lifecycle, "a", 1)
        others += served(lifecycle, "b", 1)
    assert len(others) == 5
    assert len(served(lifecycle, "c", 99)) == 4


def test_one_who_ends_everything_leaves_everything() -> None:
    lifecycle = Lifecycle(10.0, 16)
    for tenant in ("a", "b"):
        requests = served(lifecycle, tenant, 99)
        assert len(requests) == 12
        for request in requests:
            request.close()


def test_without_tenants_the_whole_router_is_everybodys() -> None:
    assert len(served(Lifecycle(10.0, 16), None, 99)) == 16


@pytest.mark.parametrize("seed", range(5))
def test_nobody_below_its_share_is_refused_unless_such_as_it_hold_the_reserve(seed: int) -> None:
    """Tenants above their share never hold a place of the reserve that they took as such."""
    random, capacity = Random(seed), 32
    lifecycle = Lifecycle(10.0, capacity)
    held: list[tuple[str, bool, ExitStack]] = []
    for _ in range(1500):
        if held and random.random() < 0.35:
            held.pop(random.randrange(len(held)))[2].close()
            continue
        tenant = random.choice("aaaaaaabbc")
        count = Counter(name for name, _, _ in held)
        in_reserve = len(held) >= capacity * 3 // 4
        is_below = count[tenant] < capacity // (len(count) + 1)
        if taken := served(lifecycle, tenant, 1):
            assert is_below or not in_reserve
            held.append((tenant, in_reserve, taken[0]))
        else:
            assert len(held) == capacity or (in_reserve and not is_below)


def body_of(budget: ByteBudget, tenant: str, size: int) -> Body:
    body = Body(budget, tenant)
    try:
        for _ in range(size // KIBIBYTE):
            body.add(b"x" * KIBIBYTE)
    except OverloadedError:
        body.release()
        raise
    return body


@pytest.mark.parametrize(("size", "most"), [(8 * KIBIBYTE, 96), (2 * SMALL_BYTES, 4)])
def test_bytes_are_shared_as_requests_are(size: int, most: int) -> None:
    """Bodies that are not small have three quarters of the bytes, and of these the same share."""
    budget = ByteBudget(1024 * KIBIBYTE)
    bodies = [body_of(budget, "a", size) for _ in range(most)]
    with pytest.raises(OverloadedError, match=r"your requests: .* bytes are held and 1024 more"):
        body_of(budget, "a", size)
    other = body_of(budget, "b", size)
    other.release()
    for body in bodies:
        body.release()
    assert budget.held_bytes == 0
    assert len([body_of(budget, "b", size) for _ in range(most)]) == most


def test_nothing_more_is_never_refused() -> None:
    budget = ByteBudget(KIBIBYTE)
    budget.take(KIBIBYTE, KIBIBYTE)
    budget.take(0, 2 * SMALL_BYTES)
    budget.take(-1, 2 * SMALL_BYTES)
    assert budget.held_bytes == KIBIBYTE - 1


def test_what_may_be_dropped_is_not_counted_for_its_tenant() -> None:
    budget = ByteBudget(1024 * KIBIBYTE)
    dropped: list[int] = []
    bodies = [body_of(budget, "a", 32 * KIBIBYTE) for _ in range(24)]
    for number, body in enumerate(bodies):
        body.make_evictable(lambda number=number: dropped.append(number))  # type: ignore[misc]
    bodies += [body_of(budget, "a", 32 * KIBIBYTE) for _ in range(4)]
    assert not dropped, "below its share again"
    bodies[-5].pin()
    assert body_of(budget, "b", 128 * KIBIBYTE).held_bytes
    bodies += [body_of(budget, "a", 32 * KIBIBYTE) for _ in range(12)]
    assert dropped[0] == 0
    assert 23 not in dropped, "it is needed"


async def test_a_router_that_one_tenant_fills_serves_another(tmp_path: Path) -> None:
    for name in ("greedy", "other"):
        (tmp_path / name).write_text(name)

    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(fakes.streams_when_let))
        router = await stack.enter_async_context(
            fakes.running_router(
                engine.url, server={"max_requests": 4}, auth=Auth(keys_directory=str(tmp_path))
            )
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())

        async def asked(tenant: str) -> aiohttp.ClientResponse:
            headers = {"Authorization": f"Bearer {tenant}"}
            post = client.post(
                router.url + "/v1/completions", data=b'{"stream": true}', headers=headers
            )
            return await stack.enter_async_context(post)

        answers = await asyncio.gather(*(asked("greedy") for _ in range(6)))
        assert Counter(answer.status for answer in answers) == {200: 3, 429: 3}
        refused = next(answer for answer in answers if answer.status == 429)
        assert refused.headers["Retry-After"] == "1"
        error = json.loads(await refused.read())["error"]
        assert error["code"] == "router_full"
        assert error["message"].startswith("your requests: 3 are served and 1 more comes; allowed")
        assert (await asked("other")).status == 200
        engine.gate.set()
