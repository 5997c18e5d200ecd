"""Transport of KV pages to decode engines and its speed, asked until each has measured it.

An engine's first measurement holds while its container runs, so a status does not follow the
traffic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError
from sluice_contract.wire.load import HandoverWire

from sluice_operator.clock import Clock
from sluice_operator.informer.workqueue import Backoff
from sluice_operator.kube.kinds import Manifest
from sluice_operator.log import fields
from sluice_operator.probes.accelerators import ASKED_AT_ONCE, Fetch, container_of, load_report

UNMEASURED: Final = Backoff(first_seconds=15.0, cap_seconds=300.0)
"""Delay between two requests to an engine that has not read enough, or does not answer."""
MAX_KEPT: Final = 50_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Answer:
    wire: HandoverWire | None
    requests: int
    ask_at: float

    @property
    def is_measured(self) -> bool:
        return self.wire is not None and self.wire.gigabytes_per_second is not None


class HandoverReports:
    """Reported transports by container. Several reconciles may ask at once."""

    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self._answers: dict[str, _Answer] = {}

    async def fetch(self, engines: Iterable[Manifest]) -> tuple[HandoverWire | None, ...]:
        """Transport that each engine reports; None: no answer yet, or a release that does not
        report it."""
        return tuple(await asyncio.gather(*(self._fetch_one(engine) for engine in engines)))

    def again_seconds(self, engines: Iterable[Manifest]) -> float | None:
        """When to ask again; None where each of the engines has measured it."""
        answers = [self._answers.get(container_of(engine)) for engine in engines]
        times = [answer.ask_at for answer in answers if answer and not answer.is_measured]
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    async def _fetch_one(self, engine: Manifest) -> HandoverWire | None:
        container, now = container_of(engine), self._clock.monotonic()
        answer = self._answers.get(container)
        if answer and (answer.is_measured or now < answer.ask_at):
            return answer.wire
        wire, requests = (answer.wire, answer.requests + 1) if answer else (None, 1)
        try:
            async with self._turns:
                wire = (await load_report(self._fetch, engine)).handover
        except (OSError, TimeoutError, ValidationError) as error:
            extra = fields(pod=engine["metadata"]["name"], error=type(error).__name__)
            logger.info("engine not asked", extra=extra)
        again = now + UNMEASURED.delay_seconds(requests, 1.0)
        self._answers[container] = _Answer(wire, requests, again)
        while len(self._answers) > MAX_KEPT:
            del self._answers[next(iter(self._answers))]
        return wire
