"""The adapters that engines report, asked until all adapters are loaded.

An engine that has loaded all of a file is not asked again until the file changes. Others are asked
every few seconds.
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
"""Delay until an engine has taken a change: the kubelet needs about a minute to bring it."""
FAILED_SECONDS: Final = 15.0
"""Delay after a failed adapter, which engines try again, and after no answer."""
MAX_KEPT: Final = 50_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineAdapters:
    """Adapters that one engine reports."""

    digest: str | None = None
    """Digest of the adapters' file that the engine has carried out as far as it could; None: it has
    not answered."""
    loaded: frozenset[str] = frozenset()
    """Names of loaded adapters."""
    failed: dict[str, str] = field(default_factory=dict)
    """Errors by the name of the failed adapter."""


@dataclass(frozen=True)
class _Answer:
    adapters: EngineAdapters
    asked_for: str
    """Digest of the file that it should have carried out when it was asked."""
    ask_at: float


class AdapterReports:
    """Adapter reports by container. Several reconciles may ask at once."""

    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self._answers: dict[str, _Answer] = {}

    async def fetch(self, engines: Iterable[Manifest], digest: str) -> tuple[EngineAdapters, ...]:
        """Adapters that each engine reports; `digest`: of the file that they should carry out."""
        return tuple(await asyncio.gather(*(self._fetch_one(engine, digest) for engine in engines)))

    def again_seconds(self, engines: Iterable[Manifest], digest: str) -> float | None:
        """Seconds until the engines are asked again; None where each has all adapters."""
        answers = [self._answers.get(container_of(engine)) for engine in engines]
        times = [
            answer.ask_at for answer in answers if answer and not _is_done(answer.adapters, digest)
        ]
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    async def _fetch_one(self, engine: Manifest, digest: str) -> EngineAdapters:
        container, now = container_of(engine), self._clock.monotonic()
        answer = self._answers.get(container)
        last = answer.adapters if answer else EngineAdapters()
        if answer and (
            _is_done(last, digest) or (answer.asked_for == digest and now < answer.ask_at)
        ):
            return last
        waits = FAILED_SECONDS
        try:
            async with self._turns:
                reported = _adapters(await load_report(self._fetch, engine))
            waits = FAILED_SECONDS if reported.digest == digest else AGAIN_SECONDS
        except (OSError, TimeoutError, ValidationError) as error:
            extra = fields(pod=engine["metadata"]["name"], error=type(error).__name__)
            logger.info("engine not asked", extra=extra)
            reported = last
        self._answers[container] = _Answer(reported, digest, now + waits)
        while len(self._answers) > MAX_KEPT:
            del self._answers[next(iter(self._answers))]
        return reported


def _adapters(report: LoadReport) -> EngineAdapters:
    return EngineAdapters(
        report.adapters_file, frozenset(report.adapters), dict(report.adapters_failed)
    )


def _is_done(adapters: EngineAdapters, digest: str) -> bool:
    return adapters.digest == digest and not adapters.failed
