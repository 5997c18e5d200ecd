"""Engines and a router as processes of this machine: started, restarted in place, killed.

Knows no request.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

from sluice_contract.wire.load import Ledger, LoadReport

from e2e.cluster.ports import free_port
from e2e.model.folder import FOLDER
from tests.runtime.launch.processes import (
    Process,
    descendants,
    get,
    program,
    running,
    status,
    until,
)

MODEL: Final = "sluice-tiny"
KEY: Final = b"k" * 32
SETTINGS: Final[dict[str, Any]] = {"kvPoolTokens": 32768, "threads": 1, "chunkSize": 256}


class EngineProcess:
    """One engine with ports of its own; several lives, one after the other."""

    def __init__(self, folder: Path, role: str, **settings: Any) -> None:
        folder.mkdir()
        self.role = role
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        kv = {"bootstrapPort": free_port(), **settings.pop("kvTransfer", {})}
        key = folder / "key"
        key.write_bytes(settings.pop("key", KEY))
        server = {"port": port, "drainSeconds": 60, **settings.pop("server", {})}
        two_pools = {} if role == "mixed" else {"kvTransfer": kv}
        config = {
            "model": {"uri": str(FOLDER), "name": MODEL},
            "role": role,
            "server": server,
            "handoverKeyFile": str(key),
            **two_pools,
            **SETTINGS,
            **settings,
        }
        self._config = folder / "engine.json"
        self._config.write_text(json.dumps(config))
        self._life: AbstractContextManager[Process] | None = None
        self.process: Process

    def start(self) -> None:
        """Returns at once."""
        assert self._life is None
        self._life = running(program(self._config))
        self.process = self._life.__enter__()

    def wait(self) -> None:
        """Until it is ready."""
        ended = self.process.popen.poll
        until(lambda: ended() is not None or status(self.url, "/ready") == 200)
        assert ended() is None, self.process.rest()

    def signal(self, number: signal.Signals) -> None:
        """To the API process, the engine and what they started."""
        for pid in [self.process.popen.pid, *descendants(self.process.popen.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """At once and whole, as a node that fails. Nothing happens when it has been stopped."""
        life, self._life = self._life, None
        if life is not None:
            self.signal(signal.SIGKILL)
            life.__exit__(None, None, None)

    def restart(self) -> None:
        """In place: another life at the same address."""
        self.start()
        self.wait()

    def load(self) -> LoadReport:
        return LoadReport.model_validate_json(get(self.url, "/load").content)

    def metric(self, name: str) -> float:
        """Sum over the series of this name; 0 when there is none."""
        lines = get(self.url, "/metrics").text.splitlines()
        found = [line for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rpartition(" ")[2]) for line in found)


class RouterProcess:
    """A router in front of two pools, or of mixed engines."""

    def __init__(
        self,
        folder: Path,
        prefill: Sequence[EngineProcess],
        decode: Sequence[EngineProcess],
        **settings: Any,
    ) -> None:
        key = folder / "router-key"
        key.write_bytes(KEY)
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        self.metrics_url = f"http://127.0.0.1:{(metrics_port := free_port())}"
        config = {
            "engines": [engine.url for engine in decode],
            **({"prefillEngines": [engine.url for engine in prefill]} if prefill else {}),
            "handoverKeyFile": str(key),
            "server": {"host": "127.0.0.1", "port": port, "metricsPort": metrics_port},
            **settings,
        }
        (file := folder / "router.json").write_text(json.dumps(config))
        self._command = [sys.executable, "-m", "sluice_router", "--config", str(file)]
        self._life: AbstractContextManager[Process] | None = None

    def start(self) -> None:
        """Returns when it listens."""
        self._life = running(self._command)
        self.process = self._life.__enter__()
        self.process.wait_for(r"listening on")

    def stop(self) -> None:
        """At once; nothing happens when it has been stopped."""
        life, self._life = self._life, None
        if life is not None:
            self.process.popen.kill()
            life.__exit__(None, None, None)

    def engines(self) -> dict[str, dict[str, Any]]:
        """What it knows of each, by URL."""
        rows = get(self.metrics_url, "/load").json()["engines"]
        return {row["url"]: row for row in rows}

    def ledger(self) -> Ledger:
        return Ledger.model_validate_json(get(self.metrics_url, "/ledger").content)

    def metric(self, series: str) -> float:
        lines = get(self.metrics_url, "/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(series))
