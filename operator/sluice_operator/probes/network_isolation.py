"""NetworkIsolated: whether the cluster enforces NetworkPolicies, tested without extra pods.

The operator connects to an engine at a port that the policies forbid it, right after a permitted
port has accepted. This runs concurrently with reconciles, with one engine of a service at a time.
Each service is tested at most every ten minutes, because enforcement is a property of the cluster's
network. Behind a proxy that accepts connections itself, such as a mesh's, the result means nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from sluice_contract.cluster import ports

from sluice_operator.api.conditions import Check
from sluice_operator.api.pool import BOOTSTRAP, metrics_port, port_named
from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.kube.kinds import Manifest

Connect = Callable[[str, int], Awaitable[None]]
"""Connects to an address and port, and closes; raises OSError where that is not accepted."""
TIMEOUT_SECONDS: Final = 1.0
"""Seconds for one connection; a probe of an engine makes two."""
EVERY_SECONDS: Final = 600.0
ANSWER_SECONDS: Final = 3.0
"""When to look for the answer of an engine that is being asked."""
MAX_KEPT: Final = 50_000

OUTSIDE: Final = Check("Unknown", "OutsideCluster", "The operator does not run in the cluster.")
NO_ENGINE: Final = Check("Unknown", "NoEngine", "No engine is ready that could be asked.")
ASKING: Final = Check("Unknown", "Asking", "An engine is being asked.")


@dataclass(frozen=True)
class EnginePorts:
    """Where one engine is connected to."""

    pod: str
    address: str
    permitted: int
    forbidden: int


@dataclass(frozen=True)
class _Answer:
    check: Check
    ask_at: float


class NetworkIsolation:
    """The answers by service. Nothing here waits for an engine."""

    def __init__(self, connect: Connect, clock: Clock, *, in_cluster: bool) -> None:
        self._connect = connect
        self._clock = clock
        self._in_cluster = in_cluster
        self._answers: dict[Key, _Answer] = {}
        self._asking: dict[Key, asyncio.Task[None]] = {}

    def is_due(self, key: Key) -> bool:
        """Whether `check` needs the service's engines."""
        answer = self._answers.get(key)
        is_old = answer is None or self._clock.monotonic() >= answer.ask_at
        return self._in_cluster and key not in self._asking and is_old

    def check(self, key: Key, engines: Iterable[Manifest]) -> Check:
        """The condition as far as it is known; begins to ask one of `engines`, ready pods, where it
        is due."""
        if not self._in_cluster:
            return OUTSIDE
        if self.is_due(key):
            probes = [ports for engine in engines if (ports := _ports(engine))]
            if not probes:
                self._answers.pop(key, None)
                return NO_ENGINE
            self._asking[key] = asyncio.create_task(self._ask(key, probes[0]))
        answer = self._answers.get(key)
        return answer.check if answer else ASKING

    def again_seconds(self, key: Key) -> float | None:
        """When to look again; None where an engine has to become ready first."""
        if key in self._asking:
            return ANSWER_SECONDS
        answer = self._answers.get(key)
        return max(0.0, answer.ask_at - self._clock.monotonic()) if answer else None

    async def _ask(self, key: Key, engine: EnginePorts) -> None:
        try:
            check = await self._connected(engine)
            self._answers.pop(key, None)
            self._answers[key] = _Answer(check, self._clock.monotonic() + EVERY_SECONDS)
            while len(self._answers) > MAX_KEPT:
                del self._answers[next(iter(self._answers))]
        finally:
            del self._asking[key]

    async def _connected(self, engine: EnginePorts) -> Check:
        if not await self._accepts(engine.address, engine.permitted):
            text = f"Engine {engine.pod} did not answer at port {engine.permitted} either."
            return Check("Unknown", "NoAnswer", text)
        where = f"port {engine.forbidden} of engine {engine.pod}"
        if await self._accepts(engine.address, engine.forbidden):
            text = (
                f"The operator could connect to {where}, which NetworkPolicies forbid: this "
                "cluster does not enforce them, and any pod may use engines past the routers."
            )
            return Check("False", "PoliciesNotEnforced", text)
        return Check("True", "PoliciesEnforced", f"The operator could not connect to {where}.")

    async def _accepts(self, address: str, port: int) -> bool:
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await self._connect(address, port)
        except OSError:  # TimeoutError is one
            return False
        return True


async def connect_over_tcp(address: str, port: int) -> None:
    """Connects and closes.

    Raises:
        OSError: it is not accepted.
    """
    _, writer = await asyncio.open_connection(address, port)
    writer.close()


def _ports(engine: Manifest) -> EnginePorts | None:
    """The ports to try of an engine; None where it has no address yet."""
    forbidden = port_named(engine, BOOTSTRAP) or ports.ENGINE_HTTP
    address = (engine.get("status") or {}).get("podIP")
    if not address:
        return None
    return EnginePorts(engine["metadata"]["name"], address, metrics_port(engine), forbidden)
