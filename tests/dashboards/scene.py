"""A service of two pools under a Prometheus, and what happens to it, scene by scene.

Every scene has a name, under which the panels that it fills are known.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

from tests.dashboards.gpus import recorded_gpus
from tests.dashboards.prometheus import Prometheus, Target, scraping
from tests.disaggregated.asking import Request, ask_all, of_every_kind, text
from tests.disaggregated.engines import EngineProcess, RouterProcess
from tests.disaggregated.service import Service
from tests.runtime.launch.processes import HANG_SECONDS, until

REVISION: Final = "abc12345"
SMALL: Final[dict[str, Any]] = {
    "maxRunningRequests": 8,
    "maxQueuedRequests": 8,
    "contextLength": 4096,
    "pageSize": 16,
}


@dataclass
class Stage:
    """The processes, and when each scene was."""

    service: Service
    prometheus: Prometheus
    times: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By the name of the scene: Unix time of its begin and end."""

    def play(self, scene: Callable[[Service], None]) -> None:
        began = time.time()
        scene(self.service)
        self.prometheus.until_scraped()
        self.times[scene.__name__] = (began, time.time())

    def scenes_of(self, expr: str) -> list[str]:
        """In which of them the expression had a value that is not 0."""
        shows = self.prometheus.shows
        return [name for name, (start, end) in self.times.items() if shows(expr, start, end)]


def answers_of_every_kind(service: Service) -> None:
    """Sampling, grammars, choices, conversations that go on, sessions."""
    asked = of_every_kind() + [text(length, 0, max_tokens=40) for length in (20, 900, 900, 1500)]
    ask_all(service.url, asked * 2)
    turns = [{"role": "user", "content": "hello " * 300}]
    for _ in range(3):
        _post(service, {"messages": turns, "max_tokens": 4}, {"X-Sluice-Routing-Key": "s1"})
    _post(service, {"messages": turns, "max_tokens": 4}, {})


def more_than_there_are_pages_for(service: Service) -> None:
    """Many long answers at once: queues, evictions, retractions."""
    many = [text(200, seed, max_tokens=900) for seed in range(12)]
    _at_once(service, many)


def more_than_the_queues_take(service: Service) -> None:
    """Refusals: 429 from full queues, 400 for what cannot be."""
    _at_once(service, [text(300, seed, max_tokens=60) for seed in range(60)])
    _post(service, {"messages": "none"}, {})


def more_than_the_router_holds(service: Service) -> None:
    """Long bodies, of which those whose answer has begun are not held any more."""
    padding = {"unknown": "x" * 40_000}
    _at_once(service, [text(30, seed, max_tokens=200, **padding) for seed in range(6)])


def the_prefill_engine_is_killed(service: Service) -> None:
    """While it computes long prompts; another one takes its place."""
    (prefill,) = service.prefills
    with ThreadPoolExecutor(6) as clients:
        running = [clients.submit(_try, service, text(3000, n)) for n in range(6)]
        until(lambda: any(engine.load().figures.queues.transfer for engine in service.decodes))
        prefill.signal(signal.SIGKILL)
        for each in running:
            each.result()
    _another_life(service, prefill)


def an_engine_is_killed(service: Service) -> None:
    """In the middle of answers, which the other one goes on with."""
    with ThreadPoolExecutor(6) as clients:
        running = [clients.submit(_try, service, text(60, n, max_tokens=1500)) for n in range(6)]
        until(lambda: all(engine.load().figures.running_requests for engine in service.decodes))
        service.decodes[1].signal(signal.SIGKILL)
        for each in running:
            each.result()
    _another_life(service, service.decodes[1])


def an_engine_drains(service: Service) -> None:
    """It ends its answers before it goes, and takes no new ones."""
    leaving = service.decodes[1]
    with ThreadPoolExecutor(6) as clients:
        running = [clients.submit(_try, service, text(60, n, max_tokens=2500)) for n in range(6)]
        until(lambda: leaving.load().figures.running_requests > 0)
        leaving.process.popen.send_signal(signal.SIGTERM)
        for each in running:
            each.result()


def the_last_engine_is_killed(service: Service) -> None:
    """Answers break off, and requests wait for an engine that does not come."""
    last = service.decodes[0]
    with ThreadPoolExecutor(6) as clients:
        running = [clients.submit(_try, service, text(60, n, max_tokens=3000)) for n in range(4)]
        until(lambda: last.load().figures.running_requests > 0)
        last.signal(signal.SIGKILL)
        waiting = [clients.submit(_try, service, text(60, n)) for n in range(2)]
        for each in (*running, *waiting):
            each.result()


SCENES: Final = (
    answers_of_every_kind,
    more_than_there_are_pages_for,
    more_than_the_queues_take,
    more_than_the_router_holds,
    the_prefill_engine_is_killed,
    an_engine_is_killed,
    an_engine_drains,
    the_last_engine_is_killed,
)


@contextmanager
def staged(folder: Path, rules: dict[str, Any] | None = None) -> Iterator[Stage]:
    """One prefill and two decode engines, a router, and a Prometheus; no scene is played."""
    decode = {"kvPoolTokens": 6144, **SMALL}
    with ExitStack() as stack:
        prefills = [EngineProcess(folder / "prefill", "prefill", **SMALL)]
        decodes = [EngineProcess(folder / f"decode-{n}", "decode", **decode) for n in (0, 1)]
        for engine in (*prefills, *decodes):
            engine.start()
            stack.callback(engine.stop)
        for engine in (*prefills, *decodes):
            engine.wait()
        router = SmallRouter(folder, prefills, decodes)
        router.start()
        stack.callback(router.stop)
        service = Service(prefills, decodes, router)
        service.known()
        targets = [
            Target(router.metrics_url, "router", "router"),
            Target(stack.enter_context(recorded_gpus()), "dcgm-exporter", ""),
        ]
        targets += [
            Target(engine.url, f"{engine.role}-{number}", engine.role, REVISION)
            for number, engine in enumerate(service.engines)
        ]
        yield Stage(service, stack.enter_context(scraping(folder / "prometheus", targets, rules)))


class SmallRouter(RouterProcess):
    """One that holds little, so that it forgets what a resume needs."""

    def __init__(
        self, folder: Path, prefill: list[EngineProcess], decode: list[EngineProcess]
    ) -> None:
        super().__init__(folder, prefill, decode)
        config = {
            "engines": [engine.url for engine in decode],
            "prefillEngines": [engine.url for engine in prefill],
            "handoverKeyFile": str(folder / "router-key"),
            "server": {
                "port": int(self.url.rpartition(":")[2]),
                "metricsPort": int(self.metrics_url.rpartition(":")[2]),
                "maxBufferedBytes": 128 * 1024,
            },
        }
        (folder / "router.json").write_text(json.dumps(config))
        self._command = [sys.executable, "-m", "sluice_router"]
        self._command += ["--config", str(folder / "router.json")]


def _another_life(service: Service, engine: EngineProcess) -> None:
    engine.stop()
    engine.restart()
    service.known()


def _at_once(service: Service, requests: list[Request]) -> None:
    with ThreadPoolExecutor(len(requests)) as clients:
        list(clients.map(lambda request: _try(service, request), requests))


def _try(service: Service, request: Request) -> None:
    """Whatever becomes of it."""
    body = {**request.body, "stream": True}
    with suppress(httpx.HTTPError):
        httpx.post(service.url + request.path, json=body, timeout=HANG_SECONDS)


def _post(service: Service, body: dict[str, Any], headers: dict[str, str]) -> None:
    url = service.url + "/v1/chat/completions"
    httpx.post(url, json={"model": "sluice-tiny", **body}, headers=headers, timeout=HANG_SECONDS)
