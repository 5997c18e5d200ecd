"""Finding engines: EndpointSlices are followed, every change arrives, and no outage takes an engine
away; slices are turned into engines; fresh load reports arrive, and bad ones change nothing.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import certifi
import pytest
from aiohttp import web
from sluice_contract.base import ConfigError
from sluice_contract.cluster.labels import Role
from sluice_contract.cluster.list_watch import LONGEST_PAUSE_SECONDS
from sluice_contract.config.router import Discovery, LoadFollowing
from sluice_contract.wire.load import LoadReport
from sluice_router.attempts import open_session
from sluice_router.discovery import (
    WARNED_POLLS,
    LoadPoller,
    SliceFollower,
    endpoints_of,
    slice_client,
)
from sluice_router.engines import Endpoint, Fleet, Phase, condition
from sluice_router.kube import Cluster, Credentials, in_cluster

from tests.patience import PATIENCE_SECONDS
from tests.router.fake_kube import FakeKube, endpoint_slice, running_kube
from tests.router.fakes import load_report

DISCOVERY = Discovery(service="chat", roles=(Role.PREFILL, Role.MIXED))
FINGERPRINT = {
    "model": "m",
    "pageSizeTokens": 16,
    "kvDtype": "float32",
    "layout": "page-layer-kv-token-head-dim",
    "tensorParallelSize": 1,
}
GOOD = load_report(queued_requests=3).to_json_dict()


@dataclass
class Follower:
    """A follower of the fake API server; its pauses are steps that the test lets pass."""

    fleet: Fleet
    kube: FakeKube
    pauses: asyncio.Queue[float]
    resume: asyncio.Semaphore

    async def sees(self, *names: str) -> None:
        """Wait until exactly these engines are known."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while self.names != names or not self.fleet.discovered:
                await self.fleet.wait_for_change(5)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(engine.endpoint.name for engine in self.fleet.engines())

    async def watching(self) -> int:
        """The version that the next watch starts from."""
        return await asyncio.wait_for(self.kube.watched_from.get(), PATIENCE_SECONDS)


@asynccontextmanager
async def following(kube: FakeKube) -> AsyncIterator[Follower]:
    fleet = Fleet(asyncio.get_running_loop().time)
    follower = Follower(fleet, kube, asyncio.Queue(), asyncio.Semaphore(0))

    async def pause(seconds: float) -> None:
        follower.pauses.put_nowait(seconds)
        await follower.resume.acquire()

    cluster = Cluster(kube.url, lambda: Credentials({"Authorization": f"Bearer {kube.version}"}))
    async with open_session(1.0) as session:
        client = slice_client(session, cluster, "ns", DISCOVERY)
        following = SliceFollower(client, fleet, DISCOVERY, random.Random(1), pause)
        task = asyncio.create_task(following.run())
        try:
            yield follower
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def kube() -> AsyncIterator[FakeKube]:
    async with running_kube() as running:
        running.slices["s1"] = endpoint_slice("s1", "a", "b")
        yield running


async def test_engines_are_listed_then_watched_from_there(kube: FakeKube) -> None:
    async with following(kube) as follower:
        await follower.sees("a", "b")
        assert await follower.watching() == 10
        kube.put(endpoint_slice("s2", "c"), "ADDED")
        await follower.sees("a", "b", "c")
        kube.put(endpoint_slice("s1", "b"))
        await follower.sees("b", "c")
        kube.delete("s2")
        await follower.sees("b")
    listed, watched = kube.queries
    names = "kubernetes.io/service-name in (chat-prefill,chat-mixed)"
    assert listed == {"labelSelector": names}
    assert watched == {
        "labelSelector": names,
        "watch": "true",
        "resourceVersion": "10",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": "300",
    }


async def test_a_watch_that_ends_goes_on_from_the_last_bookmark(kube: FakeKube) -> None:
    async with following(kube) as follower:
        await follower.watching()
        kube.put(endpoint_slice("s2", "c"))
        await follower.sees("a", "b", "c")
        kube.bookmark()
        kube.end_watches()
        assert await follower.watching() == 12
        assert kube.lists == 1


@pytest.mark.parametrize("way", ["status", "event"])
async def test_an_expired_version_is_listed_again(kube: FakeKube, way: str) -> None:
    async with following(kube) as follower:
        await follower.watching()
        kube.slices["s1"] = endpoint_slice("s1", "c")  # a change that no watch tells
        if way == "status":
            kube.oldest = 11
            follower.resume.release()  # the pause after a watch that told nothing
            follower.resume.release()  # and the one after its successor, as that was just listed
            kube.end_watches()
            await follower.watching()
            kube.version = 20
        else:
            kube.error(410)
            follower.resume.release()  # the pause after a watch that has not lasted
        await follower.sees("c")
        assert kube.lists == 2


async def test_an_outage_keeps_the_last_known_engines(kube: FakeKube) -> None:
    async with following(kube) as follower:
        await follower.watching()
        kube.refuse = 503
        kube.end_watches()
        for _ in range(12):
            last = await asyncio.wait_for(follower.pauses.get(), PATIENCE_SECONDS)
            assert follower.names == ("a", "b")
            follower.resume.release()
        assert LONGEST_PAUSE_SECONDS / 2 <= last <= LONGEST_PAUSE_SECONDS
        kube.refuse = None
        kube.version = 5  # a backup was restored
        assert await follower.watching() == 5
        kube.put(endpoint_slice("s2", "c"))
        await follower.sees("a", "b", "c")


async def test_a_refusal_is_asked_for_again_as_soon_as_after_an_outage(kube: FakeKube) -> None:
    kube.refuse = 403
    async with following(kube) as follower:
        for _ in range(12):
            last = await asyncio.wait_for(follower.pauses.get(), PATIENCE_SECONDS)
            follower.resume.release()
    assert LONGEST_PAUSE_SECONDS / 2 <= last <= LONGEST_PAUSE_SECONDS


async def test_what_the_api_server_asks_to_wait_for_is_waited_for(kube: FakeKube) -> None:
    kube.refuse, kube.retry_after = 429, "31"
    async with following(kube) as follower:
        assert await asyncio.wait_for(follower.pauses.get(), PATIENCE_SECONDS) > 31


async def test_a_refusal_that_follows_an_outage_is_logged(
    kube: FakeKube, caplog: pytest.LogCaptureFixture
) -> None:
    kube.refuse = 503
    async with following(kube) as follower:
        for _ in range(4):
            await asyncio.wait_for(follower.pauses.get(), PATIENCE_SECONDS)
            kube.refuse = kube.refuse if follower.kube.queries[2:] == [] else 403
            follower.resume.release()
    logged = [
        record.getMessage()[:31] for record in caplog.records if record.levelname == "WARNING"
    ]
    assert logged == [f"API server: RefusedError('{code} T" for code in (503, 403)]


async def test_an_event_that_is_too_long_is_a_pause_not_an_end(
    kube: FakeKube, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_router.kube._LONGEST_EVENT_BYTES", 1000)
    async with following(kube) as follower:
        await follower.watching()
        kube.put(endpoint_slice("s" * 10_000, "c"))
        await asyncio.wait_for(follower.pauses.get(), PATIENCE_SECONDS)
        follower.resume.release()
        assert await follower.watching() == 10


@pytest.mark.parametrize("code", [401, 403, 500])
async def test_a_refused_first_list_is_tried_again_and_nothing_counts_as_known(
    kube: FakeKube, code: int
) -> None:
    kube.refuse = code
    async with following(kube) as follower:
        first = await asyncio.wait_for(follower.pauses.get(), PATIENCE_SECONDS)
        follower.resume.release()
        assert first < 1
        assert not follower.fleet.discovered
        kube.refuse = None
        while not follower.pauses.empty():
            follower.pauses.get_nowait()
        follower.resume.release()
        await follower.sees("a", "b")


async def test_an_error_event_is_a_pause_not_an_end(kube: FakeKube) -> None:
    async with following(kube) as follower:
        await follower.watching()
        kube.error(500)
        await asyncio.wait_for(follower.pauses.get(), PATIENCE_SECONDS)
        follower.resume.release()
        assert await follower.watching() == 10


async def test_watches_that_end_at_once_are_asked_for_ever_more_slowly(kube: FakeKube) -> None:
    kube.ending = True
    async with following(kube) as follower:
        pauses = []
        for _ in range(8):
            pauses.append(await asyncio.wait_for(follower.pauses.get(), PATIENCE_SECONDS))
            follower.resume.release()
        assert pauses[-1] > 10 * pauses[0]
        assert follower.names == ("a", "b")
        assert kube.lists <= 3, "at first, and after each third failure"
        kube.ending = False
        kube.put(endpoint_slice("s2", "c"))
        await follower.sees("a", "b", "c")


async def test_a_watch_that_told_something_is_followed_by_the_next_at_once(kube: FakeKube) -> None:
    async with following(kube) as follower:
        for version in range(10, 15):
            assert await follower.watching() == version
            kube.bookmark()
            kube.end_watches()
        assert follower.pauses.empty()


async def test_credentials_are_read_for_every_call(kube: FakeKube) -> None:
    async with following(kube) as follower:
        await follower.watching()
        kube.bookmark()
        kube.end_watches()
        await follower.watching()
    assert kube.tokens[-1] != kube.tokens[0]


def test_the_mounted_token_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "ca.crt").write_text(Path(certifi.where()).read_text())
    cluster = in_cluster({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)
    assert cluster.credentials().headers == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("two")
    assert cluster.credentials().headers == {"Authorization": "Bearer two"}


@pytest.mark.parametrize(
    ("host", "url"), [("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")]
)
def test_the_api_server_is_the_one_the_kubelet_names(host: str, url: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one")
    environ = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"}
    assert in_cluster(environ, tmp_path).url == url


@pytest.mark.parametrize("environ", [{}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}])
def test_outside_a_pod_discovery_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="discovery"):
        in_cluster(environ, tmp_path)


def found(*slices: dict[str, Any]) -> list[tuple[str, str, Phase]]:
    return [(e.name, e.url, e.phase) for e in endpoints_of(slices, "chat", "http")]


@pytest.mark.parametrize(
    ("conditions", "phase"),
    [
        ({"ready": True, "serving": True, "terminating": False}, Phase.READY),
        ({}, Phase.READY),
        ({"ready": False, "serving": False, "terminating": False}, Phase.UNREADY),
        ({"ready": False, "serving": True, "terminating": True}, Phase.TERMINATING),
        ({"ready": True, "terminating": True}, Phase.TERMINATING),
    ],
)
def test_conditions_become_a_phase(conditions: dict[str, bool], phase: Phase) -> None:
    assert found(endpoint_slice("s", ("p", conditions))) == [("p", "http://10.0.0.1:8000", phase)]


def test_several_slices_are_one_list_in_order_of_names() -> None:
    slices = endpoint_slice("s1", "b"), endpoint_slice("s2", "a", "c")
    assert [name for name, _, _ in found(*slices)] == ["a", "b", "c"]


def test_a_pod_in_two_slices_counts_once_and_as_ready_if_any_says_so() -> None:
    old = endpoint_slice("old", ("p", {"ready": False}))
    new = endpoint_slice("new", "p")
    assert found(old, new) == found(new, old) == [("p", "http://10.0.0.1:8000", Phase.READY)]


def test_ipv6_is_bracketed_and_gives_way_to_ipv4() -> None:
    six = endpoint_slice("six", "p") | {"addressType": "IPv6"}
    six["endpoints"][0]["addresses"] = ["fd00::1"]
    assert found(six) == [("p", "http://[fd00::1]:8000", Phase.READY)]
    assert found(six, endpoint_slice("four", "p")) == found(endpoint_slice("four", "p"))


@pytest.mark.parametrize(
    "change",
    [
        {"ports": [{"name": "other", "port": 1}]},
        {"ports": None},
        {"endpoints": None},
        {"addressType": "FQDN"},
        {"metadata": {"name": "s"}},
        {"metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "chat"}}},
        {"metadata": {"name": "s", "labels": {"kubernetes.io/service-name": "chat-other"}}},
    ],
)
def test_what_is_no_engine_is_left_out(change: dict[str, Any]) -> None:
    assert found(endpoint_slice("s", "p") | change) == []


def test_the_role_comes_from_the_service() -> None:
    (endpoint,) = endpoints_of([endpoint_slice("s", "p", role="decode")], "chat", "http")
    assert endpoint.role is Role.DECODE


@asynccontextmanager
async def polled(answer: web.Response | None) -> AsyncIterator[tuple[Fleet, LoadPoller]]:
    """A poller of one engine that answers so; None never answers."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if answer is None:
            await asyncio.Event().wait()
            raise AssertionError
        return web.Response(status=answer.status, body=answer.body, headers=answer.headers)

    app = web.Application()
    app.router.add_get("/load", handle)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    fleet = Fleet(asyncio.get_running_loop().time)
    fleet.replace_endpoints([Endpoint("a", url, Role.MIXED, Phase.READY)])
    async with open_session(1.0) as session:
        settings = LoadFollowing(timeout_seconds=0.1 if answer is None else 5.0)
        yield fleet, LoadPoller(fleet, session, settings, random.Random(1))
    await runner.cleanup()


def report_of(fleet: Fleet) -> LoadReport | None:
    received = fleet.engines()[0].received
    return received.report if received is not None else None


async def test_a_report_is_taken_over() -> None:
    async with polled(web.json_response(GOOD)) as (fleet, poller):
        await poller.poll_all()
        report = report_of(fleet)
        assert report is not None
        assert report.figures.queued_requests == 3


async def test_a_report_with_many_adapters_is_taken_over() -> None:
    names = {f"{number:0128}": "x" * 512 for number in range(256)}
    told = GOOD | {"adapters": dict.fromkeys(names, "key"), "adaptersFailed": names}
    async with polled(web.json_response(told)) as (fleet, poller):
        await poller.poll_all()
        report = report_of(fleet)
        assert report is not None
        assert report.adapters_failed == names


async def test_our_own_requests_at_the_time_of_asking_are_noted() -> None:
    async with polled(web.json_response(GOOD)) as (fleet, poller):
        with fleet.request(fleet.engines()[0].key):
            await poller.poll_all()
        received = fleet.engines()[0].received
        assert received is not None
        assert received.own_inflight == 1


@pytest.mark.parametrize(
    "newer",
    [
        {"fromTheFuture": 1},
        {"queues": {"bootstrap": 1, "fromTheFuture": 1}},
        {"kvFingerprint": FINGERPRINT | {"fromTheFuture": "1"}},
    ],
)
async def test_keys_of_a_newer_engine_are_ignored(newer: dict[str, object]) -> None:
    async with polled(web.json_response(GOOD | newer)) as (fleet, poller):
        await poller.poll_all()
        assert report_of(fleet) is not None


async def test_an_engine_that_cannot_be_connected_to_gets_no_requests_until_it_can() -> None:
    async with polled(web.json_response(GOOD)) as (fleet, poller):
        (good,) = (engine.endpoint for engine in fleet.engines())
        fleet.replace_endpoints([replace(good, url="http://127.0.0.1:1")])
        await poller.poll_all()
        assert condition(fleet.engines()[0], 0.0) == "failing"
        moved = fleet.engines()[0].key
        fleet.report(moved, load_report(), own_inflight=0)
        assert condition(fleet.engines()[0], 0.0) == "ready"


@pytest.mark.parametrize(
    "answer",
    [
        web.Response(status=500),
        web.Response(text="{"),
        web.Response(text=json.dumps({"role": "mixed"})),
        web.Response(body=b"\xff" * 100_000),
        None,
    ],
)
async def test_a_bad_or_missing_report_changes_nothing(answer: web.Response | None) -> None:
    async with polled(answer) as (fleet, poller):
        fleet.report(fleet.engines()[0].key, load_report(queued_requests=9), own_inflight=0)
        before = fleet.engines()
        await poller.poll_all()
        assert fleet.engines() == before


@pytest.mark.parametrize("answer", [web.Response(status=500), None])
async def test_an_engine_that_gave_no_report_was_asked_if_it_can_be_connected_to(
    answer: web.Response | None,
) -> None:
    async with polled(answer) as (fleet, poller):
        (there,) = (engine.endpoint for engine in fleet.engines())
        away = replace(there, name="away", url="http://127.0.0.1:1")
        fleet.replace_endpoints([there, away])
        await poller.poll_all()
        assert [engine.was_asked for engine in fleet.engines()] == [True, False]


async def test_an_engine_that_can_be_connected_to_again_gets_requests_though_it_reports_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its log has why; the router's warns of it once."""
    async with polled(web.Response(status=500)) as (fleet, poller):
        fleet.unreachable(fleet.engines()[0].key)
        for _ in range(2 * WARNED_POLLS):
            await poller.poll_all()
        assert condition(fleet.engines()[0], 0.0) == "ready"
    (warned,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert "no load report from a: ClientResponseError" in warned
    assert "500" in warned
