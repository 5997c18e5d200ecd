"""Engines under load that are killed while clients go: every answer right, nothing leaks.

One engine of each pool is killed again and again; the others, and the router, must hold in the end
what they held at the beginning. Every answer is that of a plain engine, with drafts and a host
cache, too.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.disaggregated.asking import Request
from tests.disaggregated.engines import EngineProcess
from tests.disaggregated.service import Service, running_service
from tests.disaggregated.soaking import Held, held_by, load, questions
from tests.runtime.launch.processes import HANG_SECONDS

CLIENTS = 16
WAITS = {"connectTimeoutSeconds": HANG_SECONDS, "waitForEngineSeconds": HANG_SECONDS}
"""One engine is always there, however slow the machine."""
SETTINGS = {
    "chunkSize": 128,
    "decode": {"kvPoolTokens": 1152},
    "router": {"upstream": WAITS},
}
DRAFTS = {"speculation": {"method": "NGram"}}
HOST_CACHE = {"hostCache": {"memory": "8Mi", "disk": {"size": "32Mi"}}, "kvPoolTokens": 2048}
BOTH = {
    "decode": {"kvPoolTokens": 1152} | DRAFTS,
    "prefill": HOST_CACHE,
    "mixed": DRAFTS | HOST_CACHE,
}
USED = (
    "sluice_drafted_tokens_total",
    "sluice_accepted_tokens_total",
    "sluice_evicted_pages_total",
    "sluice_host_cache_hit_tokens_total",
    'sluice_host_cache_copied_bytes_total{kind="loaded"}',
    'sluice_host_cache_copied_bytes_total{kind="spilled"}',
)
"""Metrics by which engines tell that they use drafts and a host cache."""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> list[Request]:
    plain = EngineProcess(tmp_path_factory.mktemp("plain") / "engine", "mixed")
    plain.start()
    try:
        plain.wait()
        return questions(plain)
    finally:
        plain.stop()


@pytest.mark.xdist_group("disaggregated")
@pytest.mark.timeout(1200)
@pytest.mark.full
@pytest.mark.parametrize(
    ("backend", "seconds", "more"),
    [
        pytest.param("Mooncake", 600.0, {}, id="Mooncake-600"),
        pytest.param("TCP", 60.0, {}, id="TCP-60"),
        pytest.param("TCP", 120.0, BOTH, id="TCP-drafts-host-cache"),
        pytest.param(None, 120.0, BOTH, id="mixed-drafts-host-cache"),
    ],
)
def test_nothing_is_wrong_and_nothing_leaks(
    backend: str | None, seconds: float, more: dict[str, Any], asked: list[Request], tmp_path: Path
) -> None:
    """Without a backend engines compute and decode."""
    settings = SETTINGS | ({"kvTransfer": {"backend": backend}} if backend else {}) | more
    with running_service(tmp_path, 2 if backend else 0, 2, **settings) as service:
        with load(service, CLIENTS, asked) as warming_up:
            warming_up.wait_for_more(40)
        service.idle()
        before, rounds, used = survivors(service), 0, Counter[str]()
        began = time.monotonic()
        with load(service, CLIENTS, asked) as tally:
            while time.monotonic() < began + seconds:
                used.update(kill_one(service, rounds))
                tally.wait_for_more(20)
                rounds += 1
        service.idle()
        after = survivors(service)
        for engine in service.engines:
            used.update(metrics(engine))
        resumed = service.router.metric("sluice_router_streams_resumed_total")
        ledger = service.router.ledger()
    figures = (
        f"{rounds} kills, {tally.right} right, {tally.aborted} given up, {resumed:.0f} resumed"
    )
    print(f"{figures}, pool use {tally.mean_pool_use:.2f}: {before} {after}, {dict(used)}")
    print(f"the router's ledger: {ledger}")
    wrong = warming_up.wrong + tally.wrong
    assert not wrong, f"{figures}: {wrong}\n{service.router.process.rest()}"
    ended = sum(seen.right + seen.aborted for seen in (warming_up, tally))
    # A client that gives up may do so after the router has sent the rest.
    assert ledger.answered + ledger.resumed + ledger.abandoned == ended
    assert (ledger.refused, ledger.lost, ledger.open) == (0, 0, 0), ledger
    assert rounds >= seconds / 60
    assert tally.aborted > 0
    assert tally.mean_pool_use >= (0.5 if seconds >= 60 else 0.3)  # an engine that starts has none
    assert not more or (resumed and all(used[name] for name in USED)), used
    grown = {name: held.grown(before[name], CLIENTS) for name, held in after.items()}
    assert not any(grown.values()), grown


def kill_one(service: Service, number: int) -> dict[str, float]:
    """Of one pool after the other, and starts it again; the clients go on meanwhile. Returns the
    metrics of the life that ended."""
    pools = [pool for pool in (service.decodes, service.prefills) if pool]
    engine = pools[number % len(pools)][0]
    last = metrics(engine)
    engine.stop()
    engine.restart()
    service.known()
    return last


def metrics(engine: EngineProcess) -> dict[str, float]:
    return {name: engine.metric(name) for name in (*USED, "sluice_handover_failures_total")}


def survivors(service: Service) -> dict[str, Held]:
    pids = {
        "decode": service.decodes[1].process.popen.pid,
        "router": service.router.process.popen.pid,
    }
    if service.prefills:
        pids["prefill"] = service.prefills[1].process.popen.pid
    return {name: held_by(pid) for name, pid in pids.items()}
