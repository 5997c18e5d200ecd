"""Error answers, lost answers and broken watches: it converges afterwards, to the same objects."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from sluice_operator.kube.kinds import INFERENCE_SERVICE, SERVICE

from tests.operator.harness.cluster import Cluster
from tests.operator.harness.process import OperatorProcess
from tests.operator.harness.proxy import Proxy, Seen, proxying, status, watch_error
from tests.operator.harness.rest import comes_to_rest, event_reasons
from tests.operator.harness.scenery import chat, settled

pytestmark = pytest.mark.apiserver
StartOperator = Callable[..., OperatorProcess]


@pytest.fixture
async def proxy(operator_kubeconfig: Path, tmp_path: Path) -> AsyncIterator[tuple[Proxy, Path]]:
    async with proxying(operator_kubeconfig, tmp_path) as opened:
        yield opened


@dataclass
class Spoiling:
    """Answers a share of the requests itself, until it has spoiled `left` of them."""

    answer: Callable[[], web.Response]
    concerns: Callable[[Seen], bool]
    share: float = 0.2
    left: int = 6
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def __call__(self, seen: Seen) -> web.Response | None:
        if self.left == 0 or not self.concerns(seen) or self.draw.random() > self.share:
            return None
        self.left -= 1
        return self.answer()


def any_but_watches(seen: Seen) -> bool:
    return not seen.is_watch and "/leases" not in seen.path


def applies_of_deployments(seen: Seen) -> bool:
    return seen.method == "PATCH" and "/deployments/" in seen.path


def writes(seen: Seen) -> bool:
    return seen.is_write


def too_many() -> web.Response:
    return status(429, "TooManyRequests", **{"Retry-After": "1"})


ANSWERS: dict[str, Callable[[], Spoiling]] = {
    "409": lambda: Spoiling(lambda: status(409, "Conflict"), writes),
    "422": lambda: Spoiling(
        lambda: status(422, "Invalid"), applies_of_deployments, share=1.0, left=3
    ),
    "429": lambda: Spoiling(too_many, any_but_watches, left=4),
    "500": lambda: Spoiling(lambda: status(500, "InternalError"), any_but_watches),
    "no answer": lambda: Spoiling(lambda: web.Response(status=502, text="<html>"), any_but_watches),
}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_it_converges_through_errors(
    cluster: Cluster,
    namespace: str,
    start_operator: StartOperator,
    proxy: tuple[Proxy, Path],
    answer: str,
) -> None:
    spoiled, kubeconfig = proxy
    spoiled.spoil = spoiling = ANSWERS[answer]()
    initially = spoiling.left
    operator = start_operator(KUBECONFIG=str(kubeconfig))
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    assert spoiling.left < initially, "nothing was spoiled"
    told = "ApplyFailed" in await event_reasons(cluster, namespace)
    assert told is (answer == "422"), "only what needs a person is told"
    assert operator.running


@pytest.mark.parametrize("code", [410, 500])
async def test_a_watch_that_breaks_off_is_started_anew(
    cluster: Cluster,
    namespace: str,
    start_operator: StartOperator,
    proxy: tuple[Proxy, Path],
    code: int,
) -> None:
    broken, kubeconfig = proxy
    operator = start_operator(KUBECONFIG=str(kubeconfig))
    await cluster.create(INFERENCE_SERVICE, chat(namespace))
    await cluster.until(INFERENCE_SERVICE, namespace, settled())
    await comes_to_rest(cluster, namespace)
    cut = Once("/services", watch_error(code))
    broken.lines = cut
    broken.seen.clear()
    await cluster.delete(SERVICE, namespace, "chat-mixed")
    await broken.until(lambda seen: any(s.is_watch and s.path.endswith("/services") for s in seen))
    assert cut.done
    await cluster.delete(SERVICE, namespace, "chat")
    await cluster.until(SERVICE, namespace, lambda found: len(found) == 2)
    assert operator.running


class Once:
    """Puts one line in the place of the next event of a kind's watch."""

    def __init__(self, path: str, instead: bytes) -> None:
        self._path = path
        self._instead = instead
        self.done = False

    def __call__(self, seen: Seen, line: bytes) -> bytes:
        if self.done or not seen.path.endswith(self._path):
            return line
        self.done = True
        return self._instead
