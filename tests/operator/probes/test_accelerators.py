"""Engines are asked what they compute on once in the life of a container."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web
from sluice_contract.config.accelerators import Accelerator
from sluice_operator.kube.kinds import Manifest
from sluice_operator.probes import accelerators
from sluice_operator.probes.accelerators import AcceleratorReports, fetch_over_http

from tests.operator.virtual_time import FakeClock

H200 = Accelerator(product="NVIDIA-H200", memory_mib=143_771, count=1)
LOAD = {
    "role": "mixed", "epoch": "e", "timeSeconds": 1.0, "draining": False, "figures": {},
    "maxRunningRequests": 1, "maxQueuedRequests": 1,
    "pageSizeTokens": 1,
}  # fmt: skip


def engine(container: str, address: str = "10.0.0.1", *names: str) -> Manifest:
    """A pod whose engine has a port with each of the names, counted from 8080 on."""
    status = {"podIP": address, "containerStatuses": [{"containerID": container}]}
    declared = [{"name": name, "containerPort": 8080 + index} for index, name in enumerate(names)]
    spec = {"containers": [{"name": "engine", "ports": declared}]}
    return {"metadata": {"name": "p"}, "spec": spec, "status": status}


class Engines:
    """Answers to requests, in turn."""

    def __init__(self, *answers: bytes | OSError) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


def load(accelerator: Accelerator | None, **more: object) -> bytes:
    told = {} if accelerator is None else {"accelerator": accelerator.to_json_dict()}
    return json.dumps(LOAD | told | more).encode()


async def test_an_answer_holds_for_the_life_of_the_container() -> None:
    engines = Engines(OSError("refused"), b"{}", load(H200, aFieldOfALaterRelease=1), load(None))
    clock = FakeClock()
    reports = AcceleratorReports(engines.fetch, clock)
    for said in (None, None, H200):
        assert await reports.fetch([engine("a")]) == (said,)
        clock.elapsed_seconds += 10.0
    for _ in range(2):
        assert await reports.fetch([engine("a"), engine("b", "fd00::1")]) == (H200, None)
        assert reports.again_seconds([engine("a"), engine("b")]) is None, "it does not say, ever"
    assert engines.asked == ["http://10.0.0.1:8080/load"] * 3 + ["http://[fd00::1]:8080/load"]


async def test_who_does_not_answer_is_asked_ever_more_seldom() -> None:
    engines, clock = Engines(*[OSError("refused")] * 12, load(H200)), FakeClock()
    reports, silent, waits = AcceleratorReports(engines.fetch, clock), [engine("a")], []
    while await reports.fetch(silent) == (None,):
        waits.append(reports.again_seconds(silent) or 0.0)
        assert await reports.fetch(silent) == (None,), "not before its time"
        clock.elapsed_seconds += waits[-1]
    assert waits == [min(300.0, 5.0 * 2**index) for index in range(12)]
    assert reports.again_seconds(silent) is None


async def test_so_many_are_asked_at_once_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "ASKED_AT_ONCE", 2)
    asked, most = 0, 0

    async def fetch(url: str) -> bytes:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await asyncio.sleep(0)
        asked -= 1
        return load(H200)

    reports = AcceleratorReports(fetch, FakeClock())
    assert await reports.fetch([engine(name) for name in "abcdefg"]) == (H200,) * 7
    assert most == 2


async def test_a_pod_without_an_address_is_not_asked() -> None:
    engines = Engines()
    pod: Manifest = {"metadata": {"name": "p"}}
    assert await AcceleratorReports(engines.fetch, FakeClock()).fetch([pod]) == (None,)
    assert engines.asked == []


async def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerators, "MAX_KEPT", 2)
    engines = Engines(*[load(H200)] * 4)
    reports = AcceleratorReports(engines.fetch, FakeClock())
    for container in "abca":
        assert await reports.fetch([engine(container)]) == (H200,)
    assert len(engines.asked) == 4, "the oldest was asked again"


async def test_only_a_short_answer_with_status_200_is_read() -> None:
    async def answer(request: web.Request) -> web.Response:
        match request.path:
            case "/load":
                return web.Response(body=load(H200))
            case "/long":
                return web.Response(body=b"x" * (accelerators.MAX_BODY_BYTES + 1))
            case "/elsewhere":
                raise web.HTTPFound("/load")
        return web.Response(status=503)

    runner = web.ServerRunner(web.Server(answer))  # type: ignore[arg-type]
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        assert await fetch_over_http(f"{url}/load") == load(H200)
        for path in ("/long", "/elsewhere", "/away"):
            with pytest.raises(OSError):  # noqa: PT011
                await fetch_over_http(url + path)
    finally:
        await runner.cleanup()
    with pytest.raises(OSError):  # noqa: PT011
        await fetch_over_http(f"{url}/load")
