"""Two pools under load while engines are killed and clients go: every answer right, nothing leaks.

One engine of each pool is killed again and again; the others, and the router, must hold in the end
what they held at the beginning.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.disaggregated.service import Service, running_service
from tests.disaggregated.soaking import Held, held_by, load

CLIENTS = 16
SETTINGS = {"chunkSize": 128, "decode": {"kvPoolTokens": 1152}}


@pytest.mark.xdist_group("disaggregated")
@pytest.mark.timeout(1200)
@pytest.mark.full
@pytest.mark.parametrize(("backend", "seconds"), [("Mooncake", 600.0), ("TCP", 60.0)])
def test_nothing_is_wrong_and_nothing_leaks(backend: str, seconds: float, tmp_path: Path) -> None:
    settings = SETTINGS | {"kvTransfer": {"backend": backend}}
    with running_service(tmp_path, 2, 2, **settings) as service:
        with load(service, CLIENTS) as warming_up:
            warming_up.wait_for_more(40)
        service.idle()
        before, rounds = survivors(service), 0
        began, rng = time.monotonic(), random.Random(1)
        with load(service, CLIENTS) as tally:
            while time.monotonic() < began + seconds:
                kill_one(service, rng)
                tally.wait_for_more(20)
                rounds += 1
        service.idle()
        after = survivors(service)
        failures = sum(
            engine.metric("sluice_handover_failures_total") for engine in service.engines
        )
    figures = f"{rounds} kills, {tally.right} right, {tally.aborted} given up"
    figures += f", {failures:.0f} hand-overs failed"
    print(f"{figures}, pool use {tally.mean_pool_use:.2f}: {before} {after}")
    assert not warming_up.wrong + tally.wrong, figures
    assert rounds >= seconds / 60
    assert tally.aborted > 0
    assert tally.mean_pool_use >= (0.5 if seconds >= 60 else 0.3)  # an engine that starts has none
    grown = {name: held.grown(before[name], CLIENTS) for name, held in after.items()}
    assert not any(grown.values()), grown


def kill_one(service: Service, rng: random.Random) -> None:
    """And starts it again; the clients go on meanwhile."""
    engine = rng.choice([service.prefills, service.decodes])[0]
    engine.stop()
    engine.restart()
    service.known()


def survivors(service: Service) -> dict[str, Held]:
    pids = {
        "prefill": service.prefills[1].process.popen.pid,
        "decode": service.decodes[1].process.popen.pid,
        "router": service.router.process.popen.pid,
    }
    return {name: held_by(pid) for name, pid in pids.items()}
