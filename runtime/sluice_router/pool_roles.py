"""Has engines take the role of their pool: one whose pod was moved to the other pool.

A pod's pool is what its EndpointSlice says; its role is what its load report says. Where they
differ, the engine is asked to take the pool's role (`POST /role`), which the router can sign. Level
triggered: routers and engines may restart at any time, and several routers may ask. No request
waits for the answer; the load report shows the role. The call is good for one life of the engine,
whose epoch it names.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Final

import aiohttp
from sluice_contract.cluster.labels import Role
from sluice_contract.wire.private_calls import ROLE_PATH

from sluice_router.attempts import EngineCalls
from sluice_router.engines import EngineState, Fleet, Phase

LOOK_SECONDS: Final = 0.25
AGAIN_SECONDS: Final = 30.0
"""Pause after an engine refused, or could not be asked."""
ANSWER_SECONDS: Final = 30.0
"""How long a call is kept. An engine may finish its work for longer: then its load report says that
it drains, and it continues its change without the call."""

logger = logging.getLogger("sluice.router.roles")


class PoolRoles:
    """Asks engines of one fleet, each once at a time."""

    def __init__(
        self,
        fleet: Fleet,
        calls: EngineCalls,
        clock: Callable[[], float],
    ) -> None:
        self._fleet = fleet
        self._calls = calls
        self._clock = clock
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}

    async def run(self) -> None:
        """Looks for ever; what is under way ends with it."""
        try:
            while True:
                self.look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in self._asking.values():
                task.cancel()

    def look(self) -> None:
        """Begins to ask engines that do not have the role of their pool."""
        self._asking = {key: task for key, task in self._asking.items() if not task.done()}
        now, engines = self._clock(), self._fleet.engines()
        known = {engine.key for engine in engines}
        self._not_before = {key: at for key, at in self._not_before.items() if key in known}
        for engine in engines:
            if not moved(engine) or engine.key in self._asking:
                continue
            if now >= self._not_before.get(engine.key, now):
                self._asking[engine.key] = asyncio.create_task(self._ask(engine))

    async def _ask(self, engine: EngineState) -> None:
        name, role = engine.endpoint.name, engine.endpoint.role
        assert engine.received is not None, "only engines with a load report have moved"
        logger.info("engine %s is %s in pool %s: asked to take its role", name, engine.role, role)
        self._not_before[engine.key] = self._clock() + AGAIN_SECONDS
        body = json.dumps({"role": role, "epoch": engine.received.report.epoch}).encode()
        try:
            status, text = await self._calls.post(engine, ROLE_PATH, body, ANSWER_SECONDS)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            logger.warning("engine %s has not said that it became %s: %r", name, role, error)
            return
        if status != 200:
            logger.warning("engine %s does not become %s: %d %s", name, role, status, text)
            return
        logger.info("engine %s: %s", name, text)
        self._not_before.pop(engine.key, None)


def moved(engine: EngineState) -> bool:
    """Whether an engine that serves has the role of the other pool."""
    received = engine.received
    if received is None or engine.endpoint.phase is not Phase.READY or received.report.draining:
        return False
    return {engine.endpoint.role, received.report.role} == {Role.PREFILL, Role.DECODE}
