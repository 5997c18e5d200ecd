"""The link between API process and engine process: order, both ends' deaths, what is refused."""

from __future__ import annotations

import asyncio
import gc
import os
import stat
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from sluice_contract.wire.load import EngineFigures
from sluice_runtime.wire import transport
from sluice_runtime.wire.endpoint import private_endpoint
from sluice_runtime.wire.messages import (
    PROTOCOL_VERSION,
    Abort,
    ApiReady,
    Credit,
    Drain,
    EngineFailed,
    EngineReady,
    Generate,
    Heartbeat,
    Load,
    PlainTokens,
    Sampling,
    StepResult,
    ToApi,
    ToEngine,
    TokenDelta,
    TokenLogprob,
)
from sluice_runtime.wire.transport import (
    ApiLink,
    EngineLink,
    TransportError,
    Wakeup,
    _decode,
)

from tests.busy_machine import Stopwatch
from tests.patience import PATIENCE_SECONDS

LOAD = Load(1.0, EngineFigures(kv_pages_total=8, kv_pages_free=8), 0.7, 0, 0, {"DECODE": 3})
READY = EngineReady(PROTOCOL_VERSION, "epoch", 128, 256, 16, 8, 8, 259, "float32")


async def next_message(link: ApiLink) -> ToApi:
    async for message in link.messages():
        return message
    raise AssertionError("the engine has gone")


async def test_messages_arrive_in_order_both_ways(endpoint: str) -> None:
    engine = EngineLink(endpoint)  # connects before the API process binds
    api = ApiLink(endpoint)
    generate = Generate("a", [1, 2], 5, Sampling(seed=2**62), [258], arrival_seconds=1.5)
    special = [TokenDelta("a", (7,)), TokenDelta("b", (8,), "stop")]
    plain = PlainTokens(["a", "c"], [9, 10])
    step = StepResult(1, "MIXED", 2.0, 0.1, 0.001, special, LOAD, plain=plain)
    assert step.deltas == [*special, TokenDelta("a", (9,)), TokenDelta("c", (10,))]
    try:
        engine.send(READY)
        engine.send(step)
        engine.send(Heartbeat(LOAD))
        received = []
        async for message in api.messages():
            received.append(message)
            if len(received) == 3:
                break
        assert received == [READY, step, Heartbeat(LOAD)]
        to_engine: list[ToEngine] = [generate, Credit("a", 3), Abort("a"), Drain()]
        for sent in to_engine:
            api.send(sent)
        arrived: list[object] = []
        while len(arrived) < 4:
            arrived += await asyncio.to_thread(engine.poll, 1.0)
        assert arrived == to_engine
        assert engine.poll(0) == []
    finally:
        api.close()
        engine.close()


async def test_prompts_that_arrive_together_are_decoded_in_several_turns(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn decodes the messages of a number of bytes; the others stay where they are."""
    monkeypatch.setattr(transport, "_POLLED_BYTES", 1000)
    decoded: list[int] = []
    monkeypatch.setattr(transport, "_decode", counting(transport._decode, decoded))
    engine, api = EngineLink(endpoint), ApiLink(endpoint)
    prompts = [Generate(f"r{n}", [7] * 600, 5, Sampling()) for n in range(5)]
    try:
        engine.send(READY)
        async for _ in api.messages():
            break
        sent: list[ToEngine] = [*prompts, Abort("r4")]
        for message in sent:
            api.send(message)
        turns: list[list[ToEngine]] = []
        while sum(map(len, turns)) < len(sent):
            decoded.clear()
            turns.append(await asyncio.to_thread(engine.poll, PATIENCE_SECONDS))
            assert sum(decoded[:-1]) < 1000, "as soon as there are so many, no further one"
        assert [message for turn in turns for message in turn] == sent
        assert len(turns) >= 3
    finally:
        api.close()
        engine.close()


def counting(decode: Callable[..., Any], sizes: list[int]) -> Callable[..., Any]:
    """`decode`, which notes the sizes of frames."""

    def counted(decoder: Any, frame: bytes, sender: str) -> Any:
        sizes.append(len(frame))
        return decode(decoder, frame, sender)

    return counted


async def test_messages_end_when_the_engine_has_gone_and_its_last_word_is_read(
    endpoint: str,
) -> None:
    api = ApiLink(endpoint)
    script = (
        "import os, sys\n"
        "from sluice_runtime.wire.transport import EngineLink\n"
        "from sluice_runtime.wire.messages import EngineFailed\n"
        f"link = EngineLink({endpoint!r})\n"
        "for n in range(100): link.send(EngineFailed('R', str(n)))\n"
        "link.close()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    engine = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    try:
        said = [message async for message in api.messages()]
        assert said == [EngineFailed("R", str(n)) for n in range(100)]
    finally:
        assert await engine.wait() == -9
        api.close()


async def test_few_messages_are_read_in_a_turn_however_far_the_engine_is_ahead(
    endpoint: str,
) -> None:
    """So they are joined for the streams, which have the next turn."""
    api, engine = ApiLink(endpoint), EngineLink(endpoint)
    sent = [EngineFailed("R", str(number)) for number in range(23)]
    for message in sent:
        engine.send(message)
    await asyncio.to_thread(engine.close)
    await asyncio.to_thread(zmq.Socket.shadow(api._monitor).poll)  # all have arrived, and the end
    turns: list[list[ToApi]] = [[]]
    next_turn = asyncio.get_running_loop().call_soon

    def turn() -> None:
        turns.append([])
        timer.append(next_turn(turn))

    timer = [next_turn(turn)]
    try:
        async for received in api.messages():
            turns[-1].append(received)
    finally:
        timer[-1].cancel()
        api.close()
    assert [message for messages in turns for message in messages] == sent
    assert [len(messages) for messages in turns if messages] == [5, 5, 5, 5, 3]


def test_an_engine_that_was_asked_to_stop_leaves_at_once(endpoint: str) -> None:
    engine = EngineLink(endpoint)
    engine.send(Heartbeat(LOAD))  # nobody listens
    watch = Stopwatch()
    engine.close()
    assert watch.seconds < 5


async def test_an_api_process_that_connects_late_receives_the_engines_failure(
    endpoint: str,
) -> None:
    engine = EngineLink(endpoint)
    engine.send(EngineFailed("R", "why"))
    closing = asyncio.create_task(asyncio.to_thread(engine.close))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(closing), 0.1)
    api = ApiLink(endpoint)
    assert await next_message(api) == EngineFailed("R", "why")
    await closing
    api.close()


async def test_a_send_never_waits_for_a_reader(endpoint: str) -> None:
    api = ApiLink(endpoint)
    engine = EngineLink(endpoint)
    engine.send(READY)
    assert await next_message(api) == READY
    for number in range(20_000):
        engine.send(EngineFailed("R", str(number)))
        api.send(Abort(str(number)))
    assert len(engine.poll(PATIENCE_SECONDS)) > 0
    api.close()
    engine.close()


async def test_a_message_to_an_engine_that_has_gone_is_dropped(endpoint: str) -> None:
    api = ApiLink(endpoint)
    api.send(Abort("a"))
    api.close()


async def test_another_protocol_version_is_refused_with_both_named(endpoint: str) -> None:
    api = ApiLink(endpoint)
    engine = EngineLink(endpoint)
    engine.send(msgspec.structs.replace(READY, protocol_version=99))
    with pytest.raises(TransportError, match=f"speaks 99; allowed: {PROTOCOL_VERSION}"):
        await next_message(api)
    api.close()
    engine.close()


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (ApiReady(99), f"API process speaks 99; allowed: {PROTOCOL_VERSION}"),
        (Drain(), f"not sent its own; allowed: {PROTOCOL_VERSION}"),
    ],
)
def test_the_engine_refuses_an_api_process_of_another_protocol_version(
    endpoint: str, first: ToEngine, error: str
) -> None:
    with zmq.Context() as context, context.socket(zmq.PAIR) as stranger:
        stranger.bind(endpoint)
        engine = EngineLink(endpoint)
        stranger.send(msgspec.msgpack.encode(first))
        with pytest.raises(TransportError, match=error):
            engine.poll(PATIENCE_SECONDS)
        engine.close()


def test_a_thread_ends_the_wait_for_messages(endpoint: str) -> None:
    wakeup = Wakeup()
    engine = EngineLink(endpoint, wakeup)
    began = time.monotonic()
    with ThreadPoolExecutor() as threads:
        polled = threads.submit(engine.poll, 60.0)
        wakeup.set()
        assert polled.result() == []
    assert time.monotonic() - began < 30
    wakeup.set()
    assert engine.poll(60.0) == [], "also when it came before the wait"
    engine.close()
    wakeup.close()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"type": "Unheard"}),
        msgspec.msgpack.encode({"type": "Abort", "request_id": "a", "extra": 1}),
        msgspec.msgpack.encode({"type": "EngineReady"}),
    ],
)
async def test_what_cannot_be_decoded_is_an_error_on_both_sides(
    endpoint: str, frame: bytes
) -> None:
    context = zmq.Context()
    stranger = context.socket(zmq.PAIR)
    api = ApiLink(endpoint)
    stranger.connect(endpoint)
    stranger.send(frame)
    with pytest.raises(TransportError, match="engine process"):
        await next_message(api)
    stranger.close(linger=0)
    api.close()
    with private_endpoint() as other:
        stranger = context.socket(zmq.PAIR)
        stranger.bind(other)
        engine = EngineLink(other)
        stranger.send(frame)
        with pytest.raises(TransportError, match="API process"):
            engine.poll(PATIENCE_SECONDS)
        engine.close()
        stranger.close(linger=0)
    context.term()


@pytest.mark.parametrize("damaged", [False, True])
def test_a_long_message_is_decoded_without_looking_for_garbage(damaged: bool) -> None:
    """A prompt's scores are a million objects, and every stream waits for them."""
    scores = [TokenLogprob(1, -0.5, 1, [(token, -1.0) for token in range(20)])] * 10_000
    delta = TokenDelta("a", (7,), prompt_logprobs=scores)
    frame = msgspec.msgpack.encode(StepResult(1, "EXTEND", 2.0, 0.1, 0.001, [delta], LOAD))
    decoder: msgspec.msgpack.Decoder[ToApi] = msgspec.msgpack.Decoder(ToApi)
    collections = []

    def count(phase: str, info: dict[str, int]) -> None:
        collections.append(phase)

    gc.callbacks.append(count)
    try:
        if damaged:
            with pytest.raises(TransportError, match="cannot be decoded"):
                _decode(decoder, frame[:-1], "engine process")
        else:
            step = _decode(decoder, frame, "engine process")
            assert isinstance(step, StepResult)
            assert step.deltas == [delta]
    finally:
        gc.callbacks.remove(count)
    assert gc.isenabled()
    assert len(collections) < 50  # of hundreds


def test_the_socket_lies_in_a_private_folder_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with private_endpoint() as value:
        folder = Path(value.removeprefix("ipc://")).parent
        assert folder.parent == tmp_path
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert not folder.exists()
