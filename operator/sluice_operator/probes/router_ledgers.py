"""Ledger of a service's requests, as its routers count them, each asked every few minutes.

Between two answers the last one holds: a status does not follow the traffic. A router that does not
answer keeps what it said last; one that is gone counts no more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError
from sluice_contract.cluster.ports import ROUTER_METRICS
from sluice_contract.wire.load import Ledger

from sluice_operator.clock import Clock
from sluice_operator.kube.kinds import Manifest
from sluice_operator.probes.accelerators import ASKED_AT_ONCE, Fetch, container_of

EVERY_SECONDS: Final = 300.0
MAX_KEPT: Final = 50_000


@dataclass(frozen=True)
class _Answer:
    ledger: Ledger | None
    ask_at: float


class RouterLedgers:
    """Ledgers by container. Several reconciles may ask at once."""

    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self._answers: dict[str, _Answer] = {}

    async def total(self, routers: Iterable[Manifest]) -> Ledger | None:
        """The sum over `routers`, ready pods; None where none has answered yet."""
        answers = await asyncio.gather(*(self._fetch_one(pod) for pod in routers))
        ledgers = [ledger.model_dump() for ledger in answers if ledger is not None]
        if not ledgers:
            return None
        return Ledger(**{fate: sum(ledger[fate] for ledger in ledgers) for fate in ledgers[0]})

    def again_seconds(self, routers: Iterable[Manifest]) -> float | None:
        """Seconds until one of `routers`, ready pods, is to be asked again; None: none was asked
        before."""
        answers = [self._answers.get(container_of(pod)) for pod in routers]
        times = [answer.ask_at for answer in answers if answer is not None]
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    async def _fetch_one(self, router: Manifest) -> Ledger | None:
        container, now = container_of(router), self._clock.monotonic()
        answer = self._answers.get(container)
        if answer is not None and now < answer.ask_at:
            return answer.ledger
        ledger = answer.ledger if answer is not None else None
        self._answers[container] = _Answer(ledger, now + EVERY_SECONDS)
        address = router["status"].get("podIP") or ""
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._turns:
                body = await self._fetch(f"http://{host}:{ROUTER_METRICS}/ledger")
            ledger = Ledger.model_validate_json(body, extra="ignore")
        except (OSError, TimeoutError, ValidationError):
            return ledger  # a router that is just leaving
        self._answers[container] = _Answer(ledger, now + EVERY_SECONDS)
        while len(self._answers) > MAX_KEPT:
            del self._answers[next(iter(self._answers))]
        return ledger
