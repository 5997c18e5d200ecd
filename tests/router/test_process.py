"""The router as a process: starts light, refuses bad configuration in a line, leaves on SIGTERM,
and listens on its pod's address and on loopback.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from sluice_contract.config.router import RouterConfig, RouterServer
from sluice_router.__main__ import main

from tests.patience import PATIENCE_SECONDS
from tests.router import fakes

BODY = b'{"model": "m", "prompt": "x", "stream": true}'
MOST_MEBIBYTES = 72
"""About 52 in practice: a heavy import would show."""


@dataclass
class Process:
    """A running `python -m sluice_router`."""

    url: str
    process: asyncio.subprocess.Process
    log: asyncio.Task[bytes]
    """What it writes from when it listens to its end."""
    metrics_port: int

    def resident_mebibytes(self) -> float:
        return self._mebibytes("VmRSS")

    def peak_mebibytes(self) -> float:
        return self._mebibytes("VmHWM")

    def _mebibytes(self, name: str) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"{name}:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024


@asynccontextmanager
async def running(config: Path) -> AsyncIterator[Process]:
    command = [sys.executable, "-m", "sluice_router", "--config", str(config)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    reading = None
    try:
        found = None
        while found is None:
            line = await asyncio.wait_for(process.stderr.readline(), PATIENCE_SECONDS)
            assert line, "it ended before it listened"
            found = re.search(rb"listening on (\S+) port (\d+), metrics on port (\d+)", line)
        reading = asyncio.create_task(process.stderr.read())  # a full pipe would stop the router
        url = f"http://{found[1].decode()}:{found[2].decode()}"
        yield Process(url, process, reading, int(found[3]))
    finally:
        if process.returncode is None:
            process.kill()
        if reading is not None:
            await reading
        await process.communicate()


@pytest.mark.process
async def test_it_streams_and_leaves_on_sigterm_after_the_last_stream(tmp_path: Path) -> None:
    async with fakes.running_engine(fakes.streams_when_let) as engine:
        config = tmp_path / "router.json"
        server = fakes.LOOPBACK | {"lameDuckSeconds": 0, "drainSeconds": 30}
        config.write_text(json.dumps({"engines": [engine.url], "server": server}))
        async with (
            running(config) as router,
            aiohttp.ClientSession() as client,
            client.post(router.url + "/v1/completions", data=BODY) as response,
        ):
            assert await response.content.readany() == fakes.EVENT % 0
            assert router.resident_mebibytes() < MOST_MEBIBYTES
            router.process.send_signal(signal.SIGTERM)
            engine.gate.set()
            assert (await response.read()).endswith(fakes.DONE)
            assert await asyncio.wait_for(router.process.wait(), PATIENCE_SECONDS) == 0


FORGED = "\n2026-01-01 00:00:00,000 CRITICAL forged"
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING) [ -~…]{1,1000}")


@pytest.mark.process
async def test_no_client_decides_what_lines_the_log_has(tmp_path: Path) -> None:
    """Bytes that are no request, at both ports, and names and bodies that end a line."""
    config = tmp_path / "router.json"
    config.write_text(json.dumps({"engines": ["http://127.0.0.1:9"], "server": fakes.LOOPBACK}))
    bodies = [json.dumps({f"kv_{FORGED}": 1}), "x" + FORGED, json.dumps({"kv_" + "x" * 10**6: 1})]
    async with running(config) as router, aiohttp.ClientSession() as client:
        for body in bodies:
            async with client.post(router.url + "/v1/completions", data=body) as response:
                assert response.status == 400
                assert len(await response.read()) < 1000
        for port in (int(router.url.rpartition(":")[2]), router.metrics_port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"this is no request\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)).startswith(b"HTTP")
            writer.close()
        router.process.send_signal(signal.SIGTERM)
        log = (await asyncio.wait_for(router.log, PATIENCE_SECONDS)).decode()
    lines = log.splitlines()
    assert len(lines) >= len(bodies)
    assert [line[:200] for line in lines if not LOG_LINE.fullmatch(line)] == []


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ("{}", "exactly one of discovery and engines is required"),
        (
            '{"engines": ["ftp://x"]}',
            r'engines\[0\]: "ftp://x" is not allowed; allowed: a string that matches .*',
        ),
        ('{"engines": ["http://x"], "extra": 1}', "extra: unknown field; allowed: auth, cors, dis"),
        (
            '{"engines": ["http://x"], "load": {"staleSeconds": 0}}',
            "allowed: a number, above 0, at",
        ),
        ('{"discovery": {"service": "chat"}}', "discovery: null is not allowed"),
        ("{", r"\(root\): Invalid JSON: EOF"),
    ],
)
def test_bad_configuration_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, line: str
) -> None:
    path = tmp_path / "router.json"
    path.write_text(config)
    assert main(["--config", str(path)]) == 2
    (only,) = capsys.readouterr().err.splitlines()
    assert re.search(line, only)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
async def test_in_a_pod_it_listens_on_the_pods_address_and_on_loopback(address: str) -> None:
    """`kubectl port-forward` connects to the loopback of the pod."""
    config = RouterConfig(
        engines=("http://127.0.0.1:1",),
        server=RouterServer(port=0, metrics_port=0, lame_duck_seconds=0),
    )
    async with (
        fakes.running_from(config, {"POD_IP": "127.0.0.2"}) as router,
        aiohttp.ClientSession() as client,
    ):
        url = router.url.replace("127.0.0.1", address)
        async with client.get(url + "/health") as response:
            assert response.status == 200
