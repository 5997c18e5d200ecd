"""How far downloads are, as their pods say it."""

from __future__ import annotations

import json

from sluice_operator.kube.kinds import Manifest
from sluice_operator.probes.downloads import EVERY_SECONDS, DownloadProgress

from tests.operator.virtual_time import FakeClock

ANSWER = {"bytes": 5, "total": 10, "bytesPerSecond": 1, "etaSeconds": 5, "later": 1}


def _pod(phase: str = "Running", address: str | None = "10.0.0.1") -> Manifest:
    return {"metadata": {"uid": "1"}, "status": {"phase": phase, "podIP": address}}


class Pods:
    """What pods answer, and what they were asked."""

    def __init__(self, body: bytes | None = json.dumps(ANSWER).encode()) -> None:
        self.body = body
        self.asked: list[str] = []

    async def __call__(self, url: str) -> bytes:
        self.asked.append(url)
        if self.body is None:
            raise OSError("no route")
        return self.body


async def test_a_pod_is_asked_again_only_after_a_while() -> None:
    pods, clock = Pods(), FakeClock()
    progress = DownloadProgress(pods, clock)
    for _ in range(3):
        found = await progress.first_of([_pod()])
        assert found is not None
        assert (found.bytes, found.total) == (5, 10)
    assert pods.asked == ["http://10.0.0.1:8080/progress"]
    await clock.sleep(EVERY_SECONDS)
    await progress.first_of([_pod()])
    assert len(pods.asked) == 2


async def test_whoever_does_not_run_or_answer_has_none() -> None:
    silent, strange = Pods(None), Pods(b"[]")
    assert await DownloadProgress(silent, FakeClock()).first_of([_pod()]) is None
    assert await DownloadProgress(strange, FakeClock()).first_of([_pod(address="::1")]) is None
    assert strange.asked == ["http://[::1]:8080/progress"]
    assert await DownloadProgress(silent, FakeClock()).first_of([_pod("Pending")]) is None
    assert len(silent.asked) == 1
