"""What engines say of their adapters, asked until they have carried out what they should.

An engine that has loaded all of a file is not asked again while the file is the same; one that has
not, or could not, every few seconds. Decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from pydantic import ValidationError
from sluice_contract.wire.load import LoadReport

from sluice_operator.clock import Clock
from sluice_operator.kube.kinds import Manifest
from sluice_operator.log import fields
from sluice_operator.probes.accelerators import Fetch, container_of, load_report

ASKED_AT_ONCE: Final = 32
AGAIN_SECONDS: Final = 3.0
"""Until an engine has taken a change: the kubelet takes a minute or so to bring it."""
FAILED_SECONDS: Final = 15.0
"""Where adapters have failed, which engines try again; and after no answer."""
MAX_KEPT: Final = 50_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineAdapters:
    """What one engine says."""

    digest: str | None = None
    """Of the file that it has carried out, as far as it could; None: it has not answered."""
    loaded: frozenset[str] = frozenset()
    """Names."""
    failed: dict[str, str] = field(default_factory=dict)
    """By name, why."""


@dataclass(frozen=True)
class _Told:
    adapters: EngineAdapters
    asked_for: str
    """Digest of the file that it should have carried out when it was asked."""
    ask_at: float


class AdapterReports:
    """By container. Several reconciles may ask at once."""

    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self._told: dict[str, _Told] = {}

    async def of(self, engines: Iterable[Manifest], digest: str) -> tuple[EngineAdapters, ...]:
        """Of each pod; `digest`: of the file that they should carry out."""
        return tuple(await asyncio.gather(*(self._of(engine, digest) for engine in engines)))

    def again_seconds(self, engines: Iterable[Manifest], digest: str) -> float | None:
        """When to ask again; None where each of the engines has all adapters."""
        told = [self._told.get(container_of(engine)) for engine in engines]
        times = [each.ask_at for each in told if each and not _is_done(each.adapters, digest)]
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    async def _of(self, engine: Manifest, digest: str) -> EngineAdapters:
        container, now = container_of(engine), self._clock.monotonic()
        told = self._told.get(container)
        known = told.adapters if told else EngineAdapters()
        if told and (_is_done(known, digest) or (told.asked_for == digest and now < told.ask_at)):
            return known
        waits = FAILED_SECONDS
        try:
            async with self._turns:
                found = _adapters(await load_report(self._fetch, engine))
            waits = FAILED_SECONDS if found.digest == digest else AGAIN_SECONDS
        except (OSError, TimeoutError, ValidationError) as error:
            said = fields(pod=engine["metadata"]["name"], error=type(error).__name__)
            logger.info("engine not asked", extra=said)
            found = known
        self._told[container] = _Told(found, digest, now + waits)
        while len(self._told) > MAX_KEPT:
            del self._told[next(iter(self._told))]
        return found


def _adapters(report: LoadReport) -> EngineAdapters:
    return EngineAdapters(
        report.adapters_file, frozenset(report.adapters), dict(report.adapters_failed)
    )


def _is_done(adapters: EngineAdapters, digest: str) -> bool:
    return adapters.digest == digest and not adapters.failed
