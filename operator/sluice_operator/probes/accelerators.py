"""The accelerators that engines report, each asked once per container.

Ready engines are asked. An answer holds while the container runs, even an answer without an
accelerator. An engine that does not answer is asked again with increasing delay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import aiohttp
from pydantic import ValidationError
from sluice_contract.config.accelerators import Accelerator
from sluice_contract.wire.load import LoadReport

from sluice_operator.api.pool import metrics_port
from sluice_operator.clock import Clock
from sluice_operator.informer.workqueue import Backoff
from sluice_operator.kube.kinds import Manifest
from sluice_operator.log import fields

Fetch = Callable[[str], Awaitable[bytes]]
"""The body at a URL; raises OSError where there is none."""
TIMEOUT_SECONDS: Final = 2.0
MAX_BODY_BYTES: Final = 1 << 20
MAX_KEPT: Final = 50_000
"""Most containers whose answers are kept; the oldest are dropped first."""
ASKED_AT_ONCE: Final = 32
SILENCE: Final = Backoff(first_seconds=5.0, cap_seconds=300.0)
"""Delay between two requests to an engine that does not answer."""

T = TypeVar("T")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Silent:
    """A container that has not answered."""

    failures: int
    ask_at: float


class AcceleratorReports:
    """Accelerators by container. Several reconciles may ask at once."""

    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self._known: dict[str, Accelerator | None] = {}
        self._silent: dict[str, _Silent] = {}

    async def fetch(self, engines: Iterable[Manifest]) -> tuple[Accelerator | None, ...]:
        """The accelerator of each pod's engine; None: no answer yet, or a release that does not
        report it."""
        return tuple(await asyncio.gather(*(self._fetch_one(engine) for engine in engines)))

    def again_seconds(self, engines: Iterable[Manifest]) -> float | None:
        """When to ask again; None where each of the engines has answered."""
        silent = [self._silent.get(container_of(engine)) for engine in engines]
        times = [report.ask_at for report in silent if report is not None]
        return max(0.0, min(times) - self._clock.monotonic()) if times else None

    async def _fetch_one(self, engine: Manifest) -> Accelerator | None:
        container, now = container_of(engine), self._clock.monotonic()
        silent = self._silent.get(container)
        if container in self._known or (silent and now < silent.ask_at):
            return self._known.get(container)
        try:
            async with self._turns:
                report = await load_report(self._fetch, engine)
        except (OSError, TimeoutError, ValidationError) as error:
            failures = silent.failures + 1 if silent else 1
            seconds = SILENCE.delay_seconds(failures, 1.0)
            _keep(self._silent, container, _Silent(failures, now + seconds))
            extra = fields(pod=engine["metadata"]["name"], error=type(error).__name__)
            logger.info("engine not asked", extra=extra)
            return None
        self._silent.pop(container, None)
        _keep(self._known, container, report.accelerator)
        return report.accelerator


async def load_report(fetch: Fetch, engine: Manifest) -> LoadReport:
    """Load report of the engine in a pod.

    Raises:
        OSError: the engine does not answer.
        TimeoutError: the engine does not answer in time.
        ValidationError: the answer is no load report.
    """
    address = (engine.get("status") or {}).get("podIP")
    if not address:
        raise OSError("the pod has no address")
    host = f"[{address}]" if ":" in address else address
    port = metrics_port(engine)
    body = await fetch(f"http://{host}:{port}/load")
    return LoadReport.model_validate_json(body, extra="ignore")


async def fetch_over_http(url: str) -> bytes:
    """The body at a URL, over a connection of its own: few engines are asked, and once.

    Raises:
        OSError: there is none, or not in time.
    """
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise OSError(f"status {response.status}")
            body = b""
            async for piece in response.content.iter_chunked(65_536):
                body += piece
                if len(body) > MAX_BODY_BYTES:
                    raise OSError(f"more than {MAX_BODY_BYTES} bytes")
            return body
    except aiohttp.ClientError as error:
        raise OSError(str(error)) from error


def container_of(engine: Manifest) -> str:
    """Key of the pod's running containers, which changes with each of their starts."""
    metadata, statuses = engine["metadata"], engine.get("status", {}).get("containerStatuses") or ()
    started = sorted(str(status.get("containerID", "")) for status in statuses)
    return ",".join((str(metadata.get("uid", metadata["name"])), *started))


def _keep(kept: dict[str, T], container: str, value: T) -> None:
    kept[container] = value
    while len(kept) > MAX_KEPT:
        del kept[next(iter(kept))]
