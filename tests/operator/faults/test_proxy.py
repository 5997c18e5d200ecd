"""The proxy of these tests ends cleanly, whatever an operator does meanwhile."""

from __future__ import annotations

import asyncio
import gc
import socket
from pathlib import Path

from tests.operator.harness.proxy import kubeconfig_of, proxying
from tests.patience import PATIENCE_SECONDS


async def test_a_connection_that_is_accepted_while_it_closes_is_closed_too(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with proxying(kubeconfig_of(tmp_path / "api", 1), tmp_path) as (proxy, _):
        connection = socket.create_connection(("127.0.0.1", proxy.port))
        # Goes on right after the round of the loop in which the connection was accepted.
        accepted = loop.create_future()
        loop.call_soon(accepted.set_result, None)
        await accepted
    gc.collect()
    with connection:
        connection.settimeout(PATIENCE_SECONDS)
        assert connection.recv(1) == b""
