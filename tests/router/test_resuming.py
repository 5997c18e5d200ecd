"""An engine that breaks off in the middle of an answer costs the client nothing but time."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.wire.load import Ledger, LoadReport
from sluice_contract.wire.private_calls import MORE_LINE, CallHead
from sluice_router import engines

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.private_engines import (
    DRAINING,
    ENGINE_DIED,
    KEY,
    SERVES,
    START,
    TEXTS,
    USAGE_FOLLOWS,
    Cut,
    Script,
    events_from,
    opened,
    whole_from,
)

FRESH = CallHead(1)
STREAM = b"".join(events_from(FRESH))
WHOLE = b"".join(whole_from(FRESH))


@pytest.fixture(autouse=True)
def no_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that failed is asked again at once; that it is left alone is tested elsewhere."""
    monkeypatch.setattr(engines, "FIRST_BREAK_SECONDS", 0.0)


@dataclass
class Service:
    """A router with a key, before engines that follow one script."""

    script: Script
    engines: list[fakes.FakeEngine]
    router: fakes.RunningRouter
    client: aiohttp.ClientSession

    async def ask(self, *, stream: bool = True, prompt: str = "x") -> tuple[int, str, bytes]:
        """Status, media type and body of an answer."""
        body = json.dumps({"model": "m", "prompt": prompt, "stream": stream})
        url = self.router.url + "/v1/completions"
        async with self.client.post(url, data=body) as response:
            return response.status, response.content_type, await response.read()

    async def counted(self, name: str) -> int:
        async with self.client.get(self.router.metrics_url + "/metrics") as response:
            found = re.search(rf"^{re.escape(name)} (\d+)", await response.text(), re.MULTILINE)
        return int(found[1]) if found else 0

    async def ledger(self) -> Ledger:
        async with self.client.get(self.router.metrics_url + "/ledger") as response:
            return Ledger.model_validate_json(await response.read())

    async def loads(self) -> list[dict[str, Any]]:
        async with self.client.get(self.router.metrics_url + "/load") as response:
            rows: list[dict[str, Any]] = (await response.json())["engines"]
        return rows


@asynccontextmanager
async def service(
    tmp_path: Path, count: int = 2, loads: Sequence[LoadReport] = (), **options: Any
) -> AsyncIterator[Service]:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    script = Script()
    async with AsyncExitStack() as stack:
        running = []
        for load in loads or [SERVES] * count:
            engine = await stack.enter_async_context(fakes.running_engine(script.behave))
            engine.load = load
            running.append(engine)
        router = await stack.enter_async_context(
            fakes.running_router(
                *(engine.url for engine in running), handover_key_file=str(key), **options
            )
        )
        client = await stack.enter_async_context(aiohttp.ClientSession())
        found = Service(script, running, router, client)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not all(
                (row.get("report") or {}).get("privateCalls") for row in await found.loads()
            ):
                await asyncio.gather(*(engine.polled.wait() for engine in running))
        yield found
        assert script.wrong == []


def folded(stream: bytes) -> list[Any]:
    """What a client makes of a stream: texts and finish reasons, usage, and how it ended. Chunks
    may be cut elsewhere; nothing else may differ."""
    texts, finished, usages = [""] * len(TEXTS), [""] * len(TEXTS), []
    *chunks, last, nothing = stream.split(b"\n\n")
    assert nothing == b""
    for event in chunks:
        assert event.startswith(b"data: {"), event
        read = json.loads(event.removeprefix(b"data: "))
        assert read["id"] == START.id
        usages += [read["usage"]] if "usage" in read else []
        for choice in read["choices"]:
            texts[choice["index"]] += choice["text"]
            finished[choice["index"]] += choice["finish_reason"] or ""
    return [texts, finished, usages, last]


EXPECTED = [
    ["".join(texts) for texts in TEXTS],
    ["stop"] * len(TEXTS),
    [USAGE_FOLLOWS, {"prompt_tokens": 3, "completion_tokens": sum(map(len, TEXTS))}],
    b"data: [DONE]",
]


def cuts_of(stream: bytes) -> list[int]:
    """At every event's boundaries, and in each of its lines."""
    ends = [found.end() for found in re.finditer(rb"\n\n", stream)][:-1]
    inside = [found.start() + 9 for found in re.finditer(rb"^(?=: |data: )", stream, re.MULTILINE)]
    return sorted({end + step for end in ends for step in (-1, 0)} | set(inside))


def between_writes() -> list[int]:
    """Where an engine may end a stream with an error: not among events that belong together."""
    sent, places = 0, [0]
    for event in list(events_from(FRESH))[:-2]:
        sent += len(event)
        places += [] if event.startswith(MORE_LINE) else [sent]
    return places


async def test_a_stream_that_does_not_break_has_no_comments(tmp_path: Path) -> None:
    async with service(tmp_path) as running:
        assert folded((await running.ask())[2]) == EXPECTED
        assert await running.ask(stream=False) == (
            200,
            "application/json",
            json.dumps({"id": START.id, "choices": EXPECTED[0]}).encode(),
        )
        assert all(head.resume is None for head in running.script.heads)
        assert await running.counted("sluice_router_resume_failures_total") == 0


@pytest.mark.parametrize("ends_with", [None, ENGINE_DIED, DRAINING])
async def test_wherever_a_stream_breaks_the_client_gets_it_once(
    tmp_path: Path, ends_with: bytes | None
) -> None:
    cuts = between_writes() if ends_with else cuts_of(STREAM)
    async with service(tmp_path) as running:
        for cut in cuts:
            running.script.engines.clear()
            running.script.cuts = [Cut(cut, ends_with)]
            status, media_type, body = await running.ask()
            assert (status, media_type) == (200, "text/event-stream"), cut
            assert folded(body) == EXPECTED, cut
            assert len({id(engine) for engine in running.script.engines}) in (1, 2)
        reason = "unavailable" if ends_with == DRAINING else "broken"
        resumed = await running.counted(f'sluice_router_streams_resumed_total{{reason="{reason}"}}')
        assert resumed >= len(cuts) - 4, "all but those before the first event, and after the last"
        ledger = await running.ledger()
        assert ledger.answered + ledger.resumed == len(cuts)
        assert ledger.resumed >= resumed
        assert (ledger.lost, ledger.open) == (0, 0)


async def test_wherever_an_answer_that_is_not_streamed_breaks_it_is_whole(tmp_path: Path) -> None:
    async with service(tmp_path) as running:
        expected = await running.ask(stream=False)
        for cut in cuts_of(WHOLE):
            running.script.cuts = [Cut(cut)]
            assert await running.ask(stream=False) == expected, cut


async def test_all_attempts_have_one_seed_and_other_requests_another(tmp_path: Path) -> None:
    async with service(tmp_path) as running:
        for _ in range(2):
            running.script.cuts = [Cut(200)]
            await running.ask()
        seeds = [head.seed for head in running.script.heads]
        assert seeds[0] == seeds[1] != seeds[2] == seeds[3]


async def test_the_engine_that_broke_off_is_not_asked_again(tmp_path: Path) -> None:
    async with service(tmp_path, count=3) as running:
        for _ in range(6):
            running.script.engines.clear()
            running.script.cuts = [Cut(200)]
            await running.ask()
            first, second = running.script.engines
            assert first is not second


def serves(identity: str, page_size_tokens: int = 16) -> LoadReport:
    """The report of an engine that serves another model, or in other pages."""
    pages = fakes.FINGERPRINT.model_copy(update={"page_size_tokens": page_size_tokens})
    return SERVES.model_copy(update={"answer_identity": identity, "kv_fingerprint": pages})


async def test_an_answer_goes_on_with_the_model_that_began_it_whatever_the_pages(
    tmp_path: Path,
) -> None:
    loads = [serves(identity, size) for identity in ("a", "b") for size in (1, 16)]
    async with service(tmp_path, loads=loads) as running:
        for _ in range(8):
            running.script.engines.clear()
            running.script.cuts = [Cut(300)]
            assert folded((await running.ask())[2]) == EXPECTED
            first, second = running.script.engines
            assert first is not second
            assert first.load.answer_identity == second.load.answer_identity


async def test_no_other_model_ends_an_answer(tmp_path: Path) -> None:
    """It waits for an engine that can, here the one that broke off."""
    async with service(tmp_path, loads=[serves("a"), serves("b")]) as running:
        for _ in range(4):
            running.script.engines.clear()
            running.script.cuts = [Cut(300)]
            assert folded((await running.ask())[2]) == EXPECTED
            first, second = running.script.engines
            assert first is second


@pytest.mark.parametrize("stream", [True, False])
async def test_with_no_engine_of_the_model_left_one_error_says_so(
    tmp_path: Path, stream: bool
) -> None:
    """As when an engine comes back in place with another model."""
    loads = [serves("a")] * 2
    async with service(tmp_path, loads=loads, upstream={"wait_for_engine_seconds": 0}) as running:
        gate = asyncio.Event()

        async def waits(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
            head, _ = opened(request, await request.read())
            events = list(events_from(head) if stream else whole_from(head))[:4]
            response = await fakes.start_stream(request)
            await response.write(b"".join(events).replace(b'"m1"', b'"a"'))
            await gate.wait()
            await response.write(DRAINING)
            return response

        for engine in running.engines:
            engine.behave = waits
        asked = asyncio.create_task(running.ask(stream=stream))
        for engine in running.engines:
            engine.load = serves("b")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(
                row["report"]["answerIdentity"] != "b" or row["condition"] != "ready"
                for row in await running.loads()
            ):
                await running.engines[0].polled.wait()
                running.engines[0].polled.clear()
        gate.set()
        status, _, body = await asked
        assert status == (200 if stream else 503)
        error = json.loads(body.strip().rpartition(b"data: ")[2])["error"]
        assert error["code"] == "no_engine"
        assert error["message"].startswith("the answer broke off, and no engine")
        assert "no engine serves the model, as it was served when" in error["message"]


async def test_an_engine_that_tells_no_identity_is_not_followed(tmp_path: Path) -> None:
    async with service(tmp_path, loads=[serves("")] * 2) as running:
        running.script.cuts = [Cut(300)]
        _, _, body = await running.ask()
        assert b'"engine_failed"' in body.rpartition(b"data: ")[2]
        assert len(running.script.engines) == 1


async def test_drains_are_followed_as_often_as_they_come(tmp_path: Path) -> None:
    async with service(tmp_path, count=3) as running:
        running.script.cuts = [Cut(1, DRAINING, events=True) for _ in range(7)]
        assert folded((await running.ask())[2]) == EXPECTED
        assert len(running.script.engines) == 8


@pytest.mark.parametrize("stream", [True, False])
async def test_two_crashes_and_no_third(tmp_path: Path, stream: bool) -> None:
    async with service(tmp_path, count=4) as running:
        running.script.cuts = [Cut(300), Cut(300), Cut(300)]
        status, _, body = await running.ask(stream=stream)
        assert len(running.script.engines) == 2
        last = body.removesuffix(b"\n\n").rpartition(b"\n\n")[2].removeprefix(b"data: ")
        assert json.loads(last)["error"]["code"] == "engine_failed"
        assert status == (200 if stream else 502)
        assert await running.counted("sluice_router_resume_failures_total") == 1


async def test_with_nobody_to_go_on_the_stream_ends_with_an_error(tmp_path: Path) -> None:
    async with service(tmp_path, count=1, upstream={"max_attempts": 1}) as running:
        running.engines[0].behave = only_beginnings(running.script, fakes.refuses(503))
        running.script.cuts = [Cut(4, ENGINE_DIED, events=True)]
        _, _, body = await running.ask()
        *_, error, nothing = body.split(b"\n\n")
        assert nothing == b""
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "told_to"
        assert await running.counted("sluice_router_resume_failures_total") == 1


@pytest.mark.parametrize("code", ["queue_full", "tenant_full"])
async def test_an_answer_that_has_begun_waits_for_a_place_in_a_queue(
    tmp_path: Path, code: str
) -> None:
    """More often than attempts are made; a request that has not begun would be refused."""
    upstream = {"max_attempts": 2, "wait_for_engine_seconds": PATIENCE_SECONDS}
    async with service(tmp_path, count=2, upstream=upstream) as running:
        refuses = fakes.refuses(429, code=code)
        behave = only_beginnings(running.script, refuses, times=4)
        for engine in running.engines:
            engine.behave = behave
        running.script.cuts = [Cut(len(STREAM) // 2)]
        assert folded((await running.ask())[2]) == EXPECTED
        assert sum(len(engine.calls) for engine in running.engines) == 6


async def test_an_engine_that_reads_another_prompt_is_passed_over(tmp_path: Path) -> None:
    async with service(tmp_path, count=3) as running:
        refuses = fakes.refuses(409, code="resume_mismatch")
        behave = only_beginnings(running.script, refuses, times=1)
        for engine in running.engines:
            engine.behave = behave
        running.script.cuts = [Cut(len(STREAM) // 2)]
        assert folded((await running.ask())[2]) == EXPECTED
        assert [len(engine.calls) for engine in running.engines] == [1, 1, 1]
        assert await running.counted('sluice_router_retries_total{reason="mismatch"}') == 1


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("status", "code"), [(404, "model_not_found"), (400, "prompt_too_long"), (500, "internal")]
)
async def test_an_engine_that_refuses_what_another_took_is_passed_over_and_left_in_peace(
    tmp_path: Path, stream: bool, status: int, code: str
) -> None:
    async with service(tmp_path, count=3) as running:
        expected = (await running.ask(stream=stream))[2]
        running.script.engines.clear()
        for engine in running.engines:
            engine.calls.clear()
        behave = only_beginnings(running.script, fakes.refuses(status, code=code), times=1)
        for engine in running.engines:
            engine.behave = behave
        running.script.cuts = [Cut(3, DRAINING, events=True)]
        assert (await running.ask(stream=stream))[2] == expected
        assert [len(engine.calls) for engine in running.engines] == [1, 1, 1]
        assert await running.counted('sluice_router_retries_total{reason="mismatch"}') == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_when_all_refuse_it_the_error_is_never_that_of_a_bad_request(
    tmp_path: Path, stream: bool
) -> None:
    async with service(tmp_path, count=3) as running:
        behave = only_beginnings(running.script, fakes.refuses(404, code="model_not_found"))
        for engine in running.engines:
            engine.behave = behave
        running.script.cuts = [Cut(3, DRAINING, events=True)]
        status, _, body = await running.ask(stream=stream)
        assert status == (200 if stream else 502)
        error = json.loads(body.strip().rpartition(b"data: ")[2])["error"]
        assert error["code"] == "engine_failed"
        assert error["message"].endswith("does not go on with the answer: 404 model_not_found")


def only_beginnings(script: Script, refuses: fakes.Behaviour, times: int = 9) -> fakes.Behaviour:
    """The script's, except that so many resumes of all are refused."""
    refused: list[str] = []

    async def behave(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        resumes = opened(request, await request.read())[0].resume is not None
        if not resumes or len(refused) >= times:
            return await script.behave(engine, request)
        refused.append(engine.url)
        return await refuses(engine, request)

    return behave


async def test_it_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with service(tmp_path) as running:
        running.script.cuts = [Cut(300)]
        await running.ask()
    first, second = (engine.url for engine in running.script.engines)
    assert f"{second} goes on with the answer after: engine {first} broke off" in caplog.text


async def test_what_is_held_never_costs_another_request_its_place(tmp_path: Path) -> None:
    """The older one goes on, but is not resumed."""
    limits = {"max_buffered_bytes": 64 * 1024}
    async with service(tmp_path, server=limits) as running:
        gate, script = asyncio.Event(), running.script

        async def waits(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
            head, _ = opened(request, await request.read())
            response = await fakes.start_stream(request)
            await response.write(b"".join(list(events_from(head))[:4]))
            engine.blocked.set()
            await gate.wait()
            assert request.transport is not None
            request.transport.close()
            return response

        for engine in running.engines:
            engine.behave = waits
        first = asyncio.create_task(running.ask(prompt="x" * 40_000))
        await asyncio.wait(
            [asyncio.create_task(engine.blocked.wait()) for engine in running.engines],
            return_when=asyncio.FIRST_COMPLETED,
        )
        assert await running.counted("sluice_router_buffered_bytes") > 40_000
        for engine in running.engines:
            engine.behave = script.behave
        assert folded((await running.ask(prompt="y" * 40_000))[2]) == EXPECTED
        gate.set()
        _, _, body = await first
        assert b"engine_failed" in body.rpartition(b"data: ")[2]
        assert await running.counted("sluice_router_resumes_forgone_total") == 1
        assert await running.counted("sluice_router_buffered_bytes") == 0
