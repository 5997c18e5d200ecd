"""The Lease does not wait for the workers: the process renews it over a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operator.harness.fake_api import hanging_api
from tests.operator.harness.process import OperatorProcess
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.process
SERVICES = 300
CONNECTIONS = 99
"""aiohttp's limit for one pool, less the watch of nodes."""


@pytest.fixture
def started() -> Iterator[list[OperatorProcess]]:
    processes: list[OperatorProcess] = []
    yield processes
    for process in processes:
        process.kill()


async def test_the_lease_is_renewed_while_every_connection_of_the_workers_is_busy(
    tmp_path: Path, started: list[OperatorProcess]
) -> None:
    async with hanging_api(SERVICES, tmp_path) as (api, kubeconfig):
        operator = OperatorProcess(
            kubeconfig,
            tmp_path / "log",
            POD_NAME="operator-0",
            POD_NAMESPACE="default",
            SLUICE_WORKERS="256",
            SLUICE_REQUEST_TIMEOUT_SECONDS="600",
        )
        started.append(operator)
        operator.start()
        await api.until_hanging(CONNECTIONS, seconds=PATIENCE_SECONDS)
        await api.until_renewed(3, seconds=PATIENCE_SECONDS)
        assert operator.running, operator.log.read_text()
