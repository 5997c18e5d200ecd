"""A service of two pools without a cluster: engines, a router, and what a client of it sees."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice_contract.wire.load import LoadReport

from tests.busy_machine import Stopwatch
from tests.disaggregated.engines import EngineProcess, RouterProcess
from tests.runtime.launch.processes import descendants, until

IDLE_SECONDS: Final = 10.0
WORK_SECONDS: Final = 2.0
"""Of processors, for requests that have ended and for telling so."""


@dataclass
class Service:
    """Its processes."""

    prefills: list[EngineProcess]
    decodes: list[EngineProcess]
    router: RouterProcess

    @property
    def url(self) -> str:
        return self.router.url

    @property
    def engines(self) -> list[EngineProcess]:
        return [*self.prefills, *self.decodes]

    def known(self) -> None:
        """Returns when the router has a report of the present life of every engine."""
        until(self._knows)

    def idle(self, *gone: EngineProcess) -> None:
        """Returns when no engine, but for those that are gone, holds a page or a request: within
        `IDLE_SECONDS`, on a machine that is busy with nothing else, and without much work."""
        left = [engine for engine in self.engines if engine not in gone]
        watch, used = Stopwatch(), processor_seconds(left)
        until(lambda: all(holds_nothing(engine.load()) for engine in left))
        assert watch.seconds < IDLE_SECONDS
        assert processor_seconds(left) - used < WORK_SECONDS, "for nobody"

    def ended(self) -> list[EngineProcess]:
        return [engine for engine in self.engines if engine.process.popen.poll() is not None]

    def mend(self) -> None:
        """Engines that have ended live again, and the router knows them."""
        ended = self.ended()
        for engine in ended:
            engine.stop()
            engine.start()
        for engine in ended:
            engine.wait()
        self.known()

    def _knows(self) -> bool:
        rows = self.router.engines()
        return all(
            rows[engine.url].get("report", {}).get("epoch") == engine.load().epoch
            and rows[engine.url]["condition"] == "ready"
            for engine in self.engines
        )


def holds_nothing(report: LoadReport) -> bool:
    """No request, no room and no page that is not free or cached."""
    figures = report.figures
    free = figures.kv_pages_available == figures.kv_pages_total
    return free and figures.requests == 0


def processor_seconds(engines: Iterable[EngineProcess]) -> float:
    """What their processes have used so far."""
    first = [engine.process.popen.pid for engine in engines]
    pids = {below for pid in first for below in (pid, *descendants(pid))}
    stats = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running_service(
    folder: Path, prefills: int = 1, decodes: int = 1, **settings: Any
) -> Iterator[Service]:
    """Once the router knows every engine. `settings`: of all engines; `prefill` and `decode`: of
    one pool; `router`: of the router. Without prefills the others are mixed."""
    of_router = settings.pop("router", {})
    pools = {role: settings.pop(role, {}) for role in ("prefill", "decode", "mixed")}
    wanted = ["prefill"] * prefills + ["decode" if prefills else "mixed"] * decodes
    engines = [
        EngineProcess(folder / f"{role}-{number}", role, **settings, **pools[role])
        for number, role in enumerate(wanted)
    ]
    with ExitStack() as stack:
        for engine in engines:
            engine.start()
            stack.callback(engine.stop)
        first, second = engines[:prefills], engines[prefills:]
        router = RouterProcess(folder, first, second, **of_router)
        for engine in engines:
            engine.wait()
        router.start()
        stack.callback(router.stop)
        service = Service(first, second, router)
        service.known()
        yield service
