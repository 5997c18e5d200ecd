"""A service of two pools: each request goes to a decode engine, with a prefill engine's name."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from sluice_contract.base import ConfigError
from sluice_contract.cluster.labels import Role
from sluice_contract.config.router import Upstream, parse_router_config
from sluice_contract.wire.handover import PREFILL_HEADER, PrefillRef, verified_header
from sluice_router import engines
from sluice_router.attempts import Call, Sender
from sluice_router.byte_budget import Body, ByteBudget
from sluice_router.engines import Endpoint, Fleet, Phase
from sluice_router.forward import Dispatcher, RequestHistory
from sluice_router.targets import chooser, prefill_signer

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes

KEY = b"k" * 32
BODY = b'{"model": "m", "prompt": "x", "stream": true}'
COMPLETIONS = "/v1/completions"


@pytest.fixture(autouse=True)
def long_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that failed is left alone until its test is over, however slow that is."""
    monkeypatch.setattr(engines, "break_seconds", lambda failures: 60.0)


@dataclass
class Pools:
    """A router, its engines, and a client of it."""

    router: fakes.RunningRouter
    prefills: list[fakes.FakeEngine]
    decodes: list[fakes.FakeEngine]
    client: aiohttp.ClientSession

    async def ask(self, **headers: str) -> tuple[int, bytes]:
        url = self.router.url + COMPLETIONS
        async with self.client.post(url, data=BODY, headers=headers) as response:
            return response.status, await response.read()

    async def error(self) -> tuple[int, str, str]:
        status, body = await self.ask()
        error = json.loads(body)["error"]
        return status, error["code"], error["message"]

    async def engines(self) -> dict[str, dict[str, Any]]:
        """Rows of the router's load summary, by URL."""
        async with self.client.get(self.router.metrics_url + "/load") as response:
            return {row["url"]: row for row in (await response.json())["engines"]}

    async def known(self, engine: fakes.FakeEngine, **row: Any) -> None:
        """Returns when the router's row of the engine says this, and it has a report of each."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                rows = await self.engines()
                shown = rows[engine.url]
                report = shown.get("report", {})
                if row.items() <= (shown | report | report.get("figures", {})).items() and all(
                    "report" in each for each in rows.values()
                ):
                    return
                engine.polled.clear()
                await engine.polled.wait()

    async def retries(self, reason: str) -> int:
        async with self.client.get(self.router.metrics_url + "/metrics") as response:
            text = await response.text()
        counted = re.search(rf'retries_total{{reason="{reason}"}} (\d+)', text)
        return int(counted[1]) if counted else 0


@asynccontextmanager
async def pools(
    folder: Path, decodes: list[fakes.Behaviour], prefills: int = 1, **upstream: Any
) -> AsyncIterator[Pools]:
    """A router in front of engines, once it has a report of each."""
    key_file = folder / "key"
    key_file.write_bytes(KEY)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(aiohttp.ClientSession())
        engines = []
        for behave in [refuses_all] * prefills + decodes:
            engines.append(await stack.enter_async_context(fakes.running_engine(behave)))
        for number, engine in enumerate(engines):
            role = Role.PREFILL if number < prefills else Role.DECODE
            port = 9000 + number if role is Role.PREFILL else None
            engine.load = fakes.load_report(role=role, epoch=f"e{number}", bootstrap_port=port)
        router = await stack.enter_async_context(
            fakes.running_router(
                *(engine.url for engine in engines[prefills:]),
                prefill_engines=tuple(engine.url for engine in engines[:prefills]),
                handover_key_file=str(key_file),
                upstream={"wait_for_engine_seconds": 5} | upstream,
            )
        )
        yield Pools(router, engines[:prefills], engines[prefills:], client)


async def refuses_all(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    raise AssertionError("a prefill engine is asked for nothing but its load")


def named(engine: fakes.FakeEngine, call: int = -1) -> str:
    """Epoch of the prefill engine that a decode engine was told to ask."""
    path, headers, _ = engine.calls[call]
    value, request_id = headers[PREFILL_HEADER], headers["X-Request-Id"]
    return told_by(value, request_id, path).epoch


def told_by(value: str, request_id: str, path: str = COMPLETIONS) -> PrefillRef:
    return verified_header((KEY,), value, request_id, path, time.time()).content


def fails_with(epoch: str) -> fakes.Behaviour:
    """A decode engine to which that prefill engine does not answer."""

    async def behave(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        failed = fakes.refuses(503, code="prefill_failed")
        return await (failed if named(engine) == epoch else fakes.streams)(engine, request)

    return behave


async def test_decode_is_asked_and_told_who_prefills(tmp_path: Path) -> None:
    async with pools(tmp_path, [fakes.streams]) as service:
        assert (await service.ask())[1].endswith(fakes.DONE)
        (prefill,), (decode,) = service.prefills, service.decodes
        ((path, headers, body),) = decode.calls
        assert (path, body) == (COMPLETIONS, BODY)
        told = told_by(headers[PREFILL_HEADER], headers["X-Request-Id"])
        assert (told.host, told.port, told.epoch) == ("127.0.0.1", 9000, "e0")
        assert told.name == prefill.url
        assert prefill.calls == []


async def test_a_clients_own_header_is_replaced(tmp_path: Path) -> None:
    async with pools(tmp_path, [fakes.streams]) as service:
        await service.ask(**{PREFILL_HEADER: "eyJob3N0IjoiZXZpbCJ9.00"})
        (decode,) = service.decodes
        assert decode.calls[0][1].getall(PREFILL_HEADER) != ["eyJob3N0IjoiZXZpbCJ9.00"]
        assert len(decode.calls[0][1].getall(PREFILL_HEADER)) == 1
        assert named(decode) == "e0"


async def test_models_come_from_a_decode_engine_without_a_header(tmp_path: Path) -> None:
    async with pools(tmp_path, [fakes.answers_json]) as service:
        async with service.client.get(service.router.url + "/v1/models") as response:
            assert await response.json() == {"engine": service.decodes[0].url}
        assert PREFILL_HEADER not in service.decodes[0].calls[0][1]


async def test_a_text_is_tokenised_by_one_engine_that_computes_nothing(tmp_path: Path) -> None:
    async with pools(tmp_path, [fakes.answers_json]) as service:
        url = service.router.url + "/tokenize"
        async with service.client.post(url, data=b'{"prompt": "x"}') as response:
            assert await response.json() == {"engine": service.decodes[0].url}
        assert PREFILL_HEADER not in service.decodes[0].calls[0][1]


async def test_both_engines_count_the_request_until_the_prompt_is_done(tmp_path: Path) -> None:
    async def waits_twice(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        await engine.gate.wait()
        engine.gate.clear()
        return await fakes.streams_when_let(engine, request)

    def inflight(rows: dict[str, dict[str, Any]]) -> list[int]:
        return [rows[engine.url]["inflightRequests"] for engine in (prefill, decode)]

    async with pools(tmp_path, [waits_twice]) as service:
        (prefill,), (decode,) = service.prefills, service.decodes
        url = service.router.url + COMPLETIONS
        asked = asyncio.create_task(service.client.post(url, data=BODY).__aenter__())
        await asyncio.wait_for(decode.asked.wait(), PATIENCE_SECONDS)
        assert inflight(await service.engines()) == [1, 1]
        decode.gate.set()
        async with await asked as response:
            assert await response.content.readany() == fakes.EVENT % 0
            assert inflight(await service.engines()) == [0, 1]
            decode.gate.set()
            await response.read()
        assert inflight(await service.engines()) == [0, 0]


async def test_a_prefill_that_fails_is_blamed_and_another_pair_serves(tmp_path: Path) -> None:
    async with pools(tmp_path, [fails_with("e0")] * 2, prefills=2) as service:
        for _ in range(2):  # turns are taken: one of the two meets the failing engine first
            status, body = await service.ask()
            assert (status, body.endswith(fakes.DONE)) == (200, True)
        asked = [
            (named(decode, number), decode.url)
            for decode in service.decodes
            for number in range(len(decode.calls))
        ]
        assert [epoch for epoch, _ in asked].count("e0") == 1
        assert len(asked) == 3
        assert await service.retries("prefill") == 1
        rows = await service.engines()
        assert rows[service.prefills[1].url]["condition"] == "ready"
        assert {rows[decode.url]["condition"] for decode in service.decodes} == {"ready"}


async def test_the_second_pair_is_wholly_another_where_there_is_one(tmp_path: Path) -> None:
    """Though the first decode engine is the less loaded one, and did nothing wrong."""
    failed = fakes.refuses(503, code="prefill_failed")
    async with pools(tmp_path, [failed] * 2, prefills=2) as service:
        busy = service.decodes[1]
        busy.load = fakes.load_report(role=Role.DECODE, epoch=busy.load.epoch, running_requests=9)
        await service.known(busy, runningRequests=9)
        status, code, _ = await service.error()
        assert (status, code) == (503, "prefill_failed")
        assert sorted(named(decode) for decode in service.decodes) == ["e0", "e1"]


async def test_the_one_decode_engine_is_asked_again_with_another_prefill(tmp_path: Path) -> None:
    """At once: there is no time to wait for a change."""
    one, none = [fails_with("e0")], {"wait_for_engine_seconds": 0}
    async with pools(tmp_path, one, prefills=2, **none) as service:
        await service.known(service.decodes[0])
        for _ in range(2):
            assert (await service.ask())[1].endswith(fakes.DONE)
        assert len(service.decodes[0].calls) == 3


@pytest.mark.parametrize(("prefills", "decodes"), [(2, 1), (1, 2)])
async def test_a_full_queue_may_be_that_of_either_engine(
    tmp_path: Path, prefills: int, decodes: int
) -> None:
    """The other engine of that pool is asked, whichever pool has one; and no pair twice."""
    full = [fakes.refuses(429, {"Retry-After": "1"}, code="queue_full")]
    async with pools(tmp_path, full * decodes, prefills=prefills, max_attempts=9) as service:
        await service.known(service.decodes[0])
        status, code, _ = await service.error()
        assert (status, code) == (429, "queue_full")
        pairs = [
            (named(decode, number), decode.url)
            for decode in service.decodes
            for number in range(len(decode.calls))
        ]
        assert len(set(pairs)) == len(pairs) == 2


async def test_a_decode_engine_that_fails_is_blamed_and_not_its_prefill(tmp_path: Path) -> None:
    async with pools(tmp_path, [fakes.dies_before_answer, fakes.streams]) as service:
        for _ in range(2):
            assert (await service.ask())[1].endswith(fakes.DONE)
        bad, good = service.decodes
        assert (len(bad.calls), len(good.calls)) == (1, 2)
        assert await service.retries("broken") == 1
        rows = await service.engines()
        assert rows[service.prefills[0].url]["condition"] == "ready"


async def test_two_failed_prefills_and_no_third(tmp_path: Path) -> None:
    failed = fakes.refuses(503, code="prefill_failed")
    async with pools(tmp_path, [failed] * 3, prefills=3, max_attempts=9) as service:
        status, code, _ = await service.error()
        assert (status, code) == (503, "prefill_failed")
        assert sum(len(decode.calls) for decode in service.decodes) == 2


async def test_prefill_engines_that_drain_are_passed_over_however_many(tmp_path: Path) -> None:
    """It is not the request's fault; each is left alone, and none is asked twice."""
    draining = [f"e{number}" for number in range(4)]

    async def behave(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
        refuses = fakes.refuses(503, code="prefill_unavailable")
        unavailable = named(engine) in draining
        return await (refuses if unavailable else fakes.streams)(engine, request)

    async with pools(tmp_path, [behave], prefills=5, max_attempts=9) as service:
        await service.known(service.decodes[0])
        for _ in range(5):
            assert (await service.ask())[1].endswith(fakes.DONE)
        decode = service.decodes[0]
        asked = [named(decode, number) for number in range(len(decode.calls))]
        assert [asked.count(epoch) for epoch in draining] == [1] * 4
        assert await service.retries("prefill_unavailable") == 4
        rows = await service.engines()
        assert rows[decode.url]["condition"] == "ready"


async def test_a_decode_engine_with_another_key_is_passed_over_and_left_alone(
    tmp_path: Path,
) -> None:
    other_key = fakes.refuses(403, code="invalid_signature")
    async with pools(tmp_path, [other_key, fakes.streams]) as service:
        await service.known(service.decodes[0])
        for _ in range(3):
            assert (await service.ask())[1].endswith(fakes.DONE)
        assert await service.retries("other_key") == len(service.decodes[0].calls) == 1
        rows = await service.engines()
        assert rows[service.prefills[0].url]["condition"] == "ready"


async def test_where_all_have_another_key_the_error_is_not_the_clients(tmp_path: Path) -> None:
    other_key = fakes.refuses(403, code="invalid_signature")
    async with pools(tmp_path, [other_key], wait_for_engine_seconds=0) as service:
        await service.known(service.decodes[0])
        status, code, message = await service.error()
        assert (status, code) == (503, "invalid_signature")
        assert f"engine {service.decodes[0].url} refuses the router's signature" in message


@pytest.mark.parametrize("missing", [Role.PREFILL, Role.DECODE])
async def test_a_pool_without_engines_is_named(tmp_path: Path, missing: Role) -> None:
    async with pools(tmp_path, [fakes.streams], wait_for_engine_seconds=0.3) as service:
        pool = service.prefills if missing is Role.PREFILL else service.decodes
        pool[0].load = pool[0].load.model_copy(update={"draining": True})
        await service.known(pool[0], condition="draining")
        start = time.monotonic()
        message = f"no engine can take the request: {missing}: engines draining: 1"
        assert await service.error() == (503, "no_engine", message)
        assert 0.25 < time.monotonic() - start < PATIENCE_SECONDS
        assert service.decodes[0].calls == []
        if missing is Role.DECODE:
            async with service.client.get(service.router.url + "/v1/models") as response:
                assert (await response.json())["error"]["message"] == message


@pytest.mark.parametrize(
    ("behave", "failures"), [(fakes.streams, 0), (fakes.refuses(400), 1)], ids=["200", "400"]
)
async def test_an_answer_clears_the_prefill_engine_and_a_refusal_does_not(
    behave: fakes.Behaviour, failures: int
) -> None:
    """Of a 400 the prefill engine may know nothing."""
    now = 100.0
    fleet = Fleet(lambda: now)
    async with fakes.running_engine(behave) as decode, aiohttp.ClientSession() as session:
        urls = {Role.PREFILL: "http://127.0.0.1:1", Role.DECODE: decode.url}
        ends = [Endpoint(role, url, role, Phase.READY) for role, url in urls.items()]
        fleet.replace_endpoints(ends)
        for end in ends:
            report = fakes.load_report(role=end.role, bootstrap_port=9000)
            fleet.report(end.key, report, own_inflight=0)
        fleet.failed(ends[0].key)
        now += 60
        choose = chooser(set(urls), 5.0, random.Random(1))
        sender = Sender(session, prefill_signer(lambda: (KEY,), time.time), None)
        dispatcher = Dispatcher(fleet, sender, Upstream(), choose, lambda: now, lambda _: None)
        call = Call("POST", COMPLETIONS, {"X-Request-Id": "r"}, Body(ByteBudget(1 << 20)))
        async with dispatcher.open(call, RequestHistory()) as reply:
            while await reply.read():
                pass
    assert {engine.failures for engine in fleet.engines()} == {failures, 0}


async def test_the_log_names_both_engines(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluice.router")
    async with pools(tmp_path, [fakes.streams]) as service:
        await service.ask()
        (prefill,), (decode,) = service.prefills, service.decodes
    assert f" 200 complete engine={decode.url} prefill={prefill.url} seconds=" in caplog.text


async def test_engines_are_counted_by_role(tmp_path: Path) -> None:
    async with pools(tmp_path, [fakes.streams] * 2) as service:
        await service.ask()
        async with service.client.get(service.router.metrics_url + "/metrics") as response:
            text = await response.text()
    assert 'sluice_router_engines{role="prefill",state="ready"} 1.0' in text
    assert 'sluice_router_engines{role="decode",state="ready"} 2.0' in text
    assert 'role="mixed"' not in text


@pytest.mark.parametrize(
    ("content", "says"),
    [(None, "No such file"), (b"short", "5 bytes; allowed: at least 32")],
)
async def test_a_key_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="handoverKeyFile") as refused:
        async with fakes.running_router(
            "http://127.0.0.1:9",
            prefill_engines=("http://127.0.0.1:8",),
            handover_key_file=str(path),
        ):
            pass
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        ({"prefillEngines": ["http://a:1"]}, "exactly one of discovery and engines"),
        (
            {"discovery": {"service": "a"}, "prefillEngines": ["http://a:1"]},
            "prefillEngines only beside engines",
        ),
        (
            {"discovery": {"service": "a", "roles": ["prefill"]}},
            "in discovery.roles mixed alone, or prefill and decode",
        ),
    ],
)
def test_half_a_pair_of_pools_is_refused(file: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_router_config(json.dumps(file))


async def test_two_pools_need_a_key() -> None:
    with pytest.raises(ConfigError, match=r"^handoverKeyFile: null is not allowed; allowed: "):
        async with fakes.running_router(
            "http://127.0.0.1:9", prefill_engines=("http://127.0.0.1:8",)
        ):
            pass
