"""What looking at scaled services costs the operator: `python -m benchmarks.autoscale_ticks`.

The operator's own loops, queries and decisions against routers in another process, on loopback
addresses: the busy services are looked at every two seconds, the others wait for a request. Nothing
is written, as no decision changes anything. One JSON line out; CPU is that of the loops' process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection

from sluice_autoscaler.decide import decide
from sluice_autoscaler.decision import Decision
from sluice_autoscaler.history import History, Tick
from sluice_autoscaler.sample import PoolSample
from sluice_autoscaler.settings import PoolLimits, Settings
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.load import ServiceLoad
from sluice_operator.apply.plan import Event
from sluice_operator.autoscale.carry_out import Outcome
from sluice_operator.autoscale.inventory import ScalingInventory
from sluice_operator.autoscale.loops import Autoscaler
from sluice_operator.autoscale.query import RouterQuery, query_session
from sluice_operator.autoscale.sample import sample_of
from sluice_operator.autoscale.tick import TICK_SECONDS, ScalingTick
from sluice_operator.clock import SystemClock
from sluice_operator.informer.keys import Key
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.scaled import PoolPods, ScaledPool, ScaledService

from tests.operator.autoscale.world import load, row

ROLES = (Role.PREFILL, Role.DECODE)
ROUTERS = 2
ENGINES = 4
"""Of each pool."""
SEEN_SECONDS = 0.02
"""Between two services: one process answers for all their routers."""
SETTLE_SECONDS = 20.0
HISTORY_TICKS = 290
"""As many as ten minutes of a busy service have."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=1000)
    parser.add_argument("--busy", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    with routers() as port:
        print(json.dumps(asyncio.run(measure(port, given.services, given.busy, given.seconds))))


async def measure(port: int, services: int, busy: int, seconds: float) -> dict[str, object]:
    """The loops for a while, once they have settled."""
    counter = Counter(busy)
    async with query_session() as session:
        scaling_tick = ScalingTick(
            known=ScalingInventory(SystemClock()),
            query=RouterQuery(session, port),
            carry_out=counter.carry_out,
            record=counter.record,
            journals=counter,
            decided=counter.decided,
            changed=lambda key: None,
            clock=SystemClock(),
        )
        autoscaler = Autoscaler(scaling_tick, SystemClock(), lambda key: None)
        running = asyncio.create_task(autoscaler.run())
        for number in range(services):
            see(autoscaler, number, number < busy)
            await asyncio.sleep(SEEN_SECONDS)
        await asyncio.sleep(SETTLE_SECONDS)
        ticks, cpu, started = counter.ticks, time.process_time(), time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - started
        cpu, ticks = time.process_time() - cpu, counter.ticks - ticks
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return {
        "services": services,
        "busy": busy,
        "ticks_per_second": round(ticks / took, 1),
        "cpu_percent_of_a_core": round(100 * cpu / took, 2),
        "max_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


class Counter:
    """Takes what a tick gives, and counts."""

    def __init__(self, busy: int) -> None:
        self._busy = busy
        self.ticks = 0

    def add(self, key: Key, live: Manifest, settings: Settings, tick: Tick) -> None:
        self.ticks += 1

    async def last_ticks(self, live: Manifest) -> tuple[Tick, ...]:
        if int(live["metadata"]["name"].rpartition("-")[2]) >= self._busy:
            return ()
        now = time.time()
        times = (now - TICK_SECONDS * number for number in range(HISTORY_TICKS, 0, -1))
        return tuple(replace(PAST, sample=replace(PAST.sample, time_seconds=at)) for at in times)

    async def carry_out(
        self, scaled: ScaledService, pods: Mapping[Role, PoolPods], decision: Decision
    ) -> Outcome:
        return Outcome()

    async def record(self, live: Manifest, events: Iterable[Event]) -> None:
        return

    def decided(self, decision: Decision) -> None:
        return


def see(autoscaler: Autoscaler, number: int, busy: bool) -> None:
    """Tells of a service and its pools, as reconciles would; the busy ones have all engines that
    they may have."""
    name = f"chat-{number}"
    key = Key(INFERENCE_SERVICE.kind, "default", name)
    most = ENGINES if busy else 100
    limits = dict.fromkeys(ROLES, PoolLimits(ENGINES, most, 1))
    pools = {
        role: ScaledPool(f"{name}-{role}", f"{name}-{role}", ENGINES, 1, "CPU") for role in ROLES
    }
    live = {"apiVersion": INFERENCE_SERVICE.api_version, "kind": INFERENCE_SERVICE.kind}
    metadata = {"name": name, "namespace": "default", "uid": name}
    for role in ROLES:
        pods = PoolPods(ENGINES, 1, ready=ENGINES, live=ENGINES, planned=ENGINES)
        autoscaler.pool_seen(key, role, pods)
    kind = 1 if busy else 2
    addresses = tuple(
        f"127.{kind}{router}.{number // 250}.{1 + number % 250}" for router in range(ROUTERS)
    )
    service = ScaledService(live | {"metadata": metadata}, Settings(limits), pools, addresses)
    autoscaler.service_seen(key, service)


@contextmanager
def routers() -> Iterator[int]:
    """A process that answers for every router; its port."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv()
    finally:
        process.terminate()
        process.join()


def _serve(parent: Connection) -> None:
    asyncio.run(_answer(parent))


async def _answer(parent: Connection) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    server = await asyncio.start_server(_talk, "0.0.0.0", 0, backlog=4096)
    parent.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """One connection: requests without bodies, one after the other. Its address says who is
    busy."""
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            busy = b"Host: 127.1" in head
            if not busy and (start := head.find(b"wait=")) > 0:
                await asyncio.sleep(float(head[start + 5 : head.index(b" ", start)]))
            writer.write(BUSY if busy else IDLE)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _load_of(running: int) -> ServiceLoad:
    rows = (
        row(
            f"chat-{role}-{number}", role=role, running_requests=running, queued_requests=running,
            queued_work_seconds=float(running), kv_pages_free=100 - running,
            prompt_tokens_total=1000, generated_tokens_total=1000, finished_requests_total=10,
            prefill_tokens_per_second=8000.0, itl_seconds=0.02,
        )
        for role in ROLES
        for number in range(ENGINES)
    )  # fmt: skip
    return load(*rows)


def _answer_of(running: int) -> bytes:
    body = _load_of(running).model_dump_json(by_alias=True, exclude_none=True).encode()
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _past() -> Tick:
    """A tick of a busy service."""
    pools = {role: PoolSample(role, ENGINES, ENGINES) for role in ROLES}
    sample = sample_of([_load_of(8)], pools, 0.0)
    settings = Settings(dict.fromkeys(ROLES, PoolLimits(ENGINES, ENGINES, 1)))
    return Tick(sample, decide(settings, History(), sample))


PAST = _past()
BUSY, IDLE = _answer_of(8), _answer_of(0)


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    main()
