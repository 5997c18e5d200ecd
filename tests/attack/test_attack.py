"""Hostile clients beside honest ones: none of these fails, and the router holds what it held.

While no engine is lost, no honest request is even refused, and no connection of theirs is closed.
Clients, attackers, router and two engines share one machine, so how much slower honest streams get
is printed as a figure (`bench: attack`) and not asserted: on two cores attackers and engines take
each other's processors, which they do not where each has its own. A tenant may fill an engine up to
a quarter of its queue: what that costs others is in the figures, and where an engine is lost, a
stream that is to go on elsewhere fails if the queue there is full.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import signal
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.attack.attacks import ATTACKS, ENGINE, MAX_CONNECTIONS
from tests.attack.honest import Seen, chatting
from tests.disaggregated.engines import EngineProcess
from tests.patience import PATIENCE_SECONDS
from tests.router import fakes
from tests.router.test_killed_engines import all_take_private_calls
from tests.router.test_process import LOG_LINE, Process, running

TENANTS = 20
MAX_MEBIBYTES = 256
LOG_BYTES_PER_REQUEST = 1024
STOPPED_SECONDS = 15.0
SPARE_FILES = 8
"""Connections to engines that may be open by chance."""
HELD = ("inflight_requests", "waiting_requests", "buffered_bytes")
"""Metrics that are 0 when nobody asks."""


@dataclass
class Service:
    """A router that asks for keys, and two engines."""

    router: Process
    engines: list[EngineProcess]
    keys: dict[str, str]
    """Of honest tenants."""
    hostile_key: str
    client: aiohttp.ClientSession

    @property
    def metrics_url(self) -> str:
        return f"http://127.0.0.1:{self.router.metrics_port}"

    async def metric(self, name: str) -> float:
        """Sum of its series."""
        async with self.client.get(f"{self.metrics_url}/metrics") as response:
            text = await response.text()
        found = re.findall(rf"^sluice_router_{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        return sum(map(float, found))

    async def idle(self, files: float = math.inf) -> None:
        """Returns when the router holds nothing, and not more open files than that."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self._holds_something() or self.files() > files:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # another process's metrics

    async def _holds_something(self) -> bool:
        return any([await self.metric(name) for name in HELD])

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.router.process.pid}/fd").iterdir()))


@asynccontextmanager
async def running_service(folder: Path) -> AsyncIterator[Service]:
    keys = {f"tenant-{number}": f"key-of-{number}" for number in range(TENANTS)}
    (folder / "keys").mkdir()
    for tenant, key in {**keys, "mallory": "key-of-mallory"}.items():
        (folder / "keys" / tenant).write_text(key)
    async with AsyncExitStack() as stack:
        engines = []
        for name in ("a", "b"):
            engines.append(EngineProcess(folder / name, "mixed", **ENGINE))
            engines[-1].start()
            stack.callback(engines[-1].stop)
        for engine in engines:
            await asyncio.to_thread(engine.wait)
        config = folder / "router.json"
        server = {"maxConnections": MAX_CONNECTIONS, "lameDuckSeconds": 0, "drainSeconds": 5}
        content = {"engines": [engine.url for engine in engines], "server": fakes.LOOPBACK | server}
        content |= {"handoverKeyFile": str(folder / "a" / "key")}
        content |= {"auth": {"keysDirectory": str(folder / "keys")}}
        config.write_text(json.dumps(content))
        router = await stack.enter_async_context(running(config))
        client = await stack.enter_async_context(aiohttp.ClientSession())
        service = Service(router, engines, keys, "key-of-mallory", client)
        await all_take_private_calls(client, service.metrics_url)
        yield service


@asynccontextmanager
async def attacking(service: Service) -> AsyncIterator[dict[str, dict[str, int]]]:
    """Every attack until the block ends; then of each how its requests ended."""
    port = service.router.url.rpartition(":")[2]
    command = [sys.executable, "-m", "tests.attack.attacks", port, service.hostile_key]
    attackers = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    ends: dict[str, dict[str, int]] = {}
    try:
        yield ends
        attackers.terminate()
        output, _ = await asyncio.wait_for(attackers.communicate(), PATIENCE_SECONDS)
        assert attackers.returncode == 0
        ends.update(json.loads(output))
    finally:
        with suppress(ProcessLookupError):
            attackers.kill()


async def lose_engines(service: Service) -> None:
    """One engine's process stands still until it is given up, the other is killed; both return."""
    first, second = service.engines
    os.kill(first.process.child("sluice_runtime.engine"), signal.SIGSTOP)
    await asyncio.sleep(STOPPED_SECONDS)
    await asyncio.to_thread(first.stop)
    await asyncio.to_thread(first.restart)
    await all_take_private_calls(service.client, service.metrics_url)
    await asyncio.to_thread(second.stop)
    await asyncio.to_thread(second.restart)
    await all_take_private_calls(service.client, service.metrics_url)


@pytest.mark.timeout(1200)
@pytest.mark.full
@pytest.mark.parametrize("seconds", [120.0, 600.0])
async def test_honest_tenants_are_served_beside_hostile_clients(
    seconds: float, tmp_path: Path
) -> None:
    async with running_service(tmp_path) as service:
        url, keys = service.router.url, service.keys
        async with chatting(url, keys) as quiet:
            await asyncio.sleep(seconds / 4)
        await service.idle()
        files = service.files()
        async with attacking(service) as ends:
            async with chatting(url, keys) as attacked:
                await asyncio.sleep(seconds / 2)
            async with chatting(url, keys) as losing:
                async with asyncio.timeout(seconds):
                    await lose_engines(service)
                await asyncio.sleep(seconds / 8)
        await service.idle(files + SPARE_FILES)
        peak = service.router.peak_mebibytes()
        requests = await service.metric("requests_total")
        resumed = await service.metric("streams_resumed_total")
        service.router.process.send_signal(signal.SIGTERM)
        log = (await asyncio.wait_for(service.router.log, PATIENCE_SECONDS)).decode()
    phases = {"quiet": quiet, "attacked": attacked, "engines lost": losing}
    for phase, seen in phases.items():
        report(phase, figures(seen))
    report("attacks", ends)
    ratio = p99(attacked.gap_seconds) / p99(quiet.gap_seconds)
    report("all", {"itl_p99_ratio": ratio, "router_peak_mebibytes": peak, "resumed": resumed})
    report("all", {"requests": requests, "log_bytes_per_request": len(log) / requests})
    assert [fault for seen in phases.values() for fault in seen.failed] == []
    assert attacked.refused == 0
    # At the cap a connection that waits for its next request is closed: clients then connect anew.
    assert attacked.reconnected <= attacked.right // 100
    assert all(ends[attack.__name__] for attack in ATTACKS), ends
    assert resumed > 0
    assert peak <= MAX_MEBIBYTES
    lines = log.splitlines()
    assert [line[:200] for line in lines if not LOG_LINE.fullmatch(line)] == []
    assert len(log) / requests <= LOG_BYTES_PER_REQUEST


def figures(seen: Seen) -> dict[str, Any]:
    return {
        "right": seen.right,
        "failed": len(seen.failed),
        "refused_then_right": seen.refused,
        "reconnected": seen.reconnected,
        "itl_p50_milliseconds": 1000 * median(seen.gap_seconds),
        "itl_p99_milliseconds": 1000 * p99(seen.gap_seconds),
        "itl_max_milliseconds": 1000 * max(seen.gap_seconds, default=math.nan),
        "ttft_p50_milliseconds": 1000 * median(seen.first_seconds),
        "ttft_p99_milliseconds": 1000 * p99(seen.first_seconds),
    }


def median(values: list[float]) -> float:
    return statistics.median(values) if values else math.nan


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else math.nan


def report(phase: str, values: dict[str, Any]) -> None:
    """One JSON line a figure."""
    for figure, value in values.items():
        shown = round(value, 3) if isinstance(value, float) else value
        line = {"bench": "attack", "phase": phase, "figure": figure, "value": shown}
        print(json.dumps(line), flush=True)
