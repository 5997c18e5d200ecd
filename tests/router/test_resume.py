"""What is held of an answer, whatever pieces it comes in and wherever it breaks off; and
`/v1/responses` through a router and two API processes' servers: one that fails costs nothing.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_contract.wire.private_calls import CallHead, EventComment, comment_line
from sluice_router import sse
from sluice_router.resume import Progress
from sluice_runtime.errors import UnavailableError
from sluice_runtime.wire.endpoint import private_endpoint

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.private_engines import ENGINE_DIED, KEY, START, event, events_from
from tests.router.test_resuming import EXPECTED, folded
from tests.runtime.server.conftest import MODEL, running_server

SEED = 2**62 + 1


def progress(charged: list[int]) -> Progress:
    return Progress(SEED, streams=True, charge=charged.append)


@given(st.lists(st.floats(0, 1), max_size=6), st.integers(1, 40))
def test_a_stream_in_any_pieces_over_any_engines_is_the_same(
    breaks: list[float], piece_bytes: int
) -> None:
    """Each engine breaks off at a share of what it would send; the last does not."""
    answer, sent = progress([]), b""
    for share in [*breaks, 1.0]:
        head = answer.head()
        assert head.seed == SEED
        stream = b"".join(events_from(head))
        stream = stream[: int(len(stream) * share)]
        whole_events = sse.WholeEvents()
        for start in range(0, len(stream), piece_bytes):
            taken = answer.read(whole_events.feed(stream[start : start + piece_bytes]))
            assert taken.error is None
            sent += taken.data
        if answer.last_seen:
            break
    assert folded(sent.removesuffix(sse.DONE) + sse.DONE) == EXPECTED


def test_what_is_held_is_told_and_forgotten() -> None:
    charged: list[int] = []
    answer = progress(charged)
    answer.read(b"".join(events_from(CallHead(SEED))))
    assert sum(charged) > 9 * 4
    answer.forget()
    assert answer.forgotten
    answer.read(event(EventComment(c=[(0, [5])]), b"{}"))
    assert sum(charged) < 1000


def test_events_may_have_names_and_share_a_comment() -> None:
    first = comment_line(EventComment(START, c=[(0, [5])])) + b"event: a\ndata: {}\n\n"
    last = comment_line(EventComment(c=[(0, [6])])) + b"event: c\ndata: {}\n\n"
    rest = b"event: b\ndata: {}\n\n" + last
    answer = progress([])
    taken = answer.read(first + rest + sse.DONE)
    named = b"".join(b"event: %c\ndata: {}\n\n" % name for name in b"abc")
    assert taken.data == named + sse.DONE
    resume = answer.head().resume
    assert resume is not None
    assert resume.choices[0].ids == [5, 6]


def test_an_error_event_is_not_passed_and_what_came_before_it_is() -> None:
    first = next(iter(events_from(CallHead(SEED))))
    data = event(EventComment(START), b'{"a":1}')
    taken = progress([]).read(first + data + ENGINE_DIED)
    assert taken.data == b'data: {"a":1}\n\n'
    assert taken.error is not None
    assert taken.error.startswith(b'{"error"')


def test_what_cannot_be_read_passes_and_nothing_is_resumed_after_it() -> None:
    for unreadable in (b": {\n", b": keep-alive\n", comment_line(EventComment(c=[(7, [1])]))):
        answer = progress([])
        answer.read(event(EventComment(START), b"{}"))
        assert answer.read(unreadable + b"data: {}\n\n").data == b"data: {}\n\n"
        assert answer.forgotten


def test_data_before_an_answer_has_begun_cannot_be_resumed() -> None:
    answer = progress([])
    assert answer.read(b"data: {}\n\n").data == b"data: {}\n\n"
    assert answer.forgotten


async def resumed(http: httpx.AsyncClient, url: str) -> int:
    text = (await http.get(url + "/metrics")).text
    found = re.findall(r"^sluice_router_streams_resumed_total\{.*\} (\d+)", text, re.MULTILINE)
    return sum(map(int, found))


async def until_private_calls(http: httpx.AsyncClient, url: str) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            rows = (await http.get(url + "/load")).json()["engines"]
            if all((row.get("report") or {}).get("privateCalls") for row in rows):
                return
            await asyncio.sleep(0.01)  # for the router's next look at them


@pytest.mark.process
async def test_a_stream_of_a_response_goes_on_with_another_engine(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(running_server(endpoint, key=KEY))
            for endpoint in [stack.enter_context(private_endpoint()) for _ in range(2)]
        ]
        urls = [server.url for server in servers]
        router = await stack.enter_async_context(
            fakes.running_router(*urls, handover_key_file=str(key))
        )
        http = await stack.enter_async_context(httpx.AsyncClient())
        await until_private_calls(http, router.metrics_url)
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0)
        )
        words = "once upon a time " * 8
        expected = await client.responses.create(model=MODEL, input=words)
        for server in servers:
            server.engine.step_seconds = 0.1  # the answer is far from its end when it breaks off
        stream = await client.responses.create(model=MODEL, input=words, stream=True)
        events = [await anext(stream)]
        for server in servers:
            server.service.client.end_streams(UnavailableError("the engine leaves"))
            server.engine.step_seconds = 0.0
        events += [event async for event in stream]
        last = events[-1]
        assert last.type == "response.completed"
        assert last.response.output_text == expected.output_text
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert "".join(deltas) == expected.output_text
        numbers = [event.sequence_number for event in events]
        assert all(before < behind for before, behind in pairwise(numbers))
        assert last.response.usage == expected.usage
        assert await resumed(http, router.metrics_url) == 1
