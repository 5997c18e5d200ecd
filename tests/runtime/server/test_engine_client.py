"""The engine client at the engine's end: what every open request hears, and what comes after."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import zmq
from sluice_runtime.errors import (
    EngineDiedError,
    InvalidRequestError,
    OverloadedError,
    UnavailableError,
)
from sluice_runtime.server.engine_client import ENGINE_DIED, ENGINE_HUNG, EngineClient
from sluice_runtime.server.metrics import EngineMetrics
from sluice_runtime.server.token_stream import TokenStream
from sluice_runtime.wire.messages import (
    EngineFailed,
    Generate,
    Heartbeat,
    Loading,
    Sampling,
    StepResult,
    ToApi,
    ToEngine,
    TokenDelta,
)
from sluice_runtime.wire.transport import ApiLink, EngineLink, TransportError

from tests.runtime.server.conftest import MODEL, running_server, until
from tests.runtime.server.fake_engine import READY, load

OUT_OF_MEMORY = EngineFailed("OutOfMemory", "no memory left")


class ScriptedLink:
    """An engine that says what it is told to, and goes."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[ToApi | TransportError | None] = asyncio.Queue()
        self.heard: list[ToEngine] = []
        self.closed = False

    async def messages(self) -> AsyncIterator[ToApi]:
        try:
            while (message := await self.said.get()) is not None:
                if isinstance(message, TransportError):
                    raise message
                yield message
        finally:
            self.closed = True

    def send(self, message: ToEngine) -> None:
        self.heard.append(message)


@pytest.mark.parametrize(
    ("end", "failure"),
    [
        (None, ENGINE_DIED),
        (OUT_OF_MEMORY, OUT_OF_MEMORY),
        (TransportError("speaks 99"), ENGINE_DIED),
    ],
    ids=["gone without a word", "failed", "speaks another protocol"],
)
async def test_every_request_ends_when_the_engine_ends(
    end: ToApi | TransportError | None, failure: EngineFailed
) -> None:
    link = ScriptedLink()
    client = EngineClient(link, lambda: 0.0, EngineMetrics())
    running = asyncio.create_task(client.run())
    link.said.put_nowait(READY)
    await client.became_ready.wait()
    streams = [client.open(Generate(name, [1], 5, Sampling())) for name in ("a", "b")]
    link.said.put_nowait(end)
    if isinstance(end, TransportError):
        with pytest.raises(TransportError, match="speaks 99"):
            await running
    else:
        assert await running == failure
    for stream in streams:
        with pytest.raises(EngineDiedError, match=failure.message):
            await stream.next()
        assert stream.ended
        client.close(stream)
    assert len(link.heard) == 2, "nothing is aborted in an engine that has gone"
    assert not client.healthy()
    with pytest.raises(UnavailableError, match="not loaded"):
        client.open(Generate("c", [1], 5, Sampling()))


async def test_an_engine_that_is_ahead_makes_few_events_and_loses_no_token(endpoint: str) -> None:
    api, engine = ApiLink(endpoint), EngineLink(endpoint)
    client = EngineClient(api, lambda: 0.0, EngineMetrics())
    running = asyncio.create_task(client.run())
    engine.send(READY)
    await client.became_ready.wait()
    streams = [client.open(Generate(name, [1], 50, Sampling())) for name in ("a", "b")]
    for step in range(20):
        deltas = [TokenDelta(stream.request_id, (step,)) for stream in streams]
        engine.send(StepResult(step, "DECODE", 0.0, 0.1, 0.1, deltas, load(2)))
    engine.send(OUT_OF_MEMORY)
    engine.close()
    zmq.Socket.shadow(api._monitor).poll()  # no turn of the loop until all has arrived

    async def read(stream: TokenStream) -> list[tuple[int, ...]]:
        read = []
        with suppress(EngineDiedError):
            while True:
                read.append((await stream.next()).token_ids)
        assert stream.ended
        return read

    steps = tuple(range(20))
    expected = [steps[:5], steps[5:10], steps[10:15], steps[15:]]
    try:
        assert await asyncio.gather(*map(read, streams)) == [expected, expected]
        assert await running == OUT_OF_MEMORY
    finally:
        api.close()


class Timeline:
    """Time that passes only while the client sleeps, and at once."""

    def __init__(self, link: ScriptedLink, beats_until: float) -> None:
        self.now = 0.0
        self._link = link
        self._beats_until = beats_until

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now <= self._beats_until:
            self._link.said.put_nowait(Heartbeat(load(1)))
        for _ in range(3):  # the reader's turn
            await asyncio.sleep(0)


async def test_the_streams_of_an_engine_that_hangs_end_within_12_seconds() -> None:
    link = ScriptedLink()
    time = Timeline(link, beats_until=100.0)
    client = EngineClient(link, lambda: time.now, EngineMetrics(), time.sleep)
    link.said.put_nowait(READY)
    running = asyncio.create_task(client.run())
    await client.became_ready.wait()
    stream = client.open(Generate("a", [1], 5, Sampling()))
    assert await running == ENGINE_HUNG
    with pytest.raises(EngineDiedError, match="silent for 10 s"):
        await stream.next()
    assert 110.0 <= time.now <= 112.0, "a step of 100 s with heartbeats is no hang"
    assert not client.healthy()
    assert link.closed


async def test_an_engine_is_not_hung_because_this_process_stood_still() -> None:
    link = ScriptedLink()
    time = Timeline(link, beats_until=0.0)

    async def sleep(seconds: float) -> None:
        time.now += 59.0  # as after SIGCONT, before anything was read
        await time.sleep(seconds)
        if time.now > 200.0:
            link.said.put_nowait(None)

    client = EngineClient(link, lambda: time.now, EngineMetrics(), sleep)
    link.said.put_nowait(READY)
    assert await client.run() == ENGINE_DIED


async def test_one_tenant_leaves_a_quarter_of_the_queue_to_others() -> None:
    link = ScriptedLink()
    client = EngineClient(link, lambda: 0.0, EngineMetrics())
    link.said.put_nowait(READY)
    running = asyncio.create_task(client.run())
    await client.became_ready.wait()

    def asked(tenant: str, count: int) -> list[Generate]:
        name = f"{tenant}{len(link.heard)}"
        return [Generate(f"{name}-{n}", [1], 5, Sampling(), tenant=tenant) for n in range(count)]

    client.open_all(asked("bob", 10))  # of 4 that run and 8 that wait
    with pytest.raises(OverloadedError, match=r"10 of its requests run or wait, 1 more"):
        client.open_all(asked("bob", 1))
    with pytest.raises(InvalidRequestError, match=r"11 answers are not allowed; .* 10 "):
        client.open_all(asked("alice", 11))
    client.open_all(asked("alice", 1))
    client.open_all(asked("", 1))
    with pytest.raises(OverloadedError, match="12 requests run or wait, 1 more come"):
        client.open_all(asked("carol", 1))
    ended = TokenDelta("bob0-0", (), "abort")
    link.said.put_nowait(StepResult(0, "IDLE", 0.0, 0.0, 0.0, [ended], load(1)))
    await until(lambda: len(client._unfinished) == 11)
    client.open_all(asked("bob", 1))
    link.said.put_nowait(None)
    await running


async def test_an_engine_that_reads_its_model_is_healthy_as_long_as_it_goes_on() -> None:
    now, link = [0.0], ScriptedLink()
    client = EngineClient(link, lambda: now[0], EngineMetrics())
    running = asyncio.create_task(client.run())
    for message in (Loading(3, 9), Loading(6, 9)):
        now[0] += 99.0
        assert client.healthy(100.0)
        link.said.put_nowait(message)
        await until(lambda told=message: client.loading == told)  # type: ignore[misc]
    now[0] += 101.0
    assert not client.healthy(100.0)
    link.said.put_nowait(None)
    await running


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_fails_before_the_first_token_is_a_503(
    endpoint: str, stream: bool
) -> None:
    async with running_server(endpoint) as server:
        server.engine.paused.set()
        body = {"model": MODEL, "prompt": "a", "stream": stream}
        asked = asyncio.create_task(server.http.post("/v1/completions", json=body))
        await until(lambda: len(server.engine.running) == 1)
        server.engine.say(OUT_OF_MEMORY)
        response = await asked
    assert (response.status_code, response.headers["retry-after"]) == (503, "2")
    error = response.json()["error"]
    assert error["code"] == "engine_died"
    assert error["message"] == "the engine has failed: no memory left"
