"""What engines say that they compute on, each asked once in its life.

Asked are engines that are ready; an answer holds for as long as the container runs. Who does not
answer is asked again when the pool is next looked at. Knows no pool and decides nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import aiohttp
from pydantic import ValidationError
from sluice_contract import ports
from sluice_contract.accelerators import Accelerator
from sluice_contract.load import LoadReport

from sluice_operator.kube.kinds import Manifest
from sluice_operator.log import fields

Fetch = Callable[[str], Awaitable[bytes]]
"""The body at a URL; raises OSError where there is none."""
TIMEOUT_SECONDS: Final = 2.0
MAX_BODY_BYTES: Final = 1 << 20
MAX_KEPT: Final = 50_000
"""Answers kept, of so many containers at most; the oldest go first."""

logger = logging.getLogger(__name__)


class AcceleratorReports:
    """Accelerators by container. Several reconciles may ask at once."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch
        self._known: dict[str, Accelerator] = {}

    async def of(self, engines: Iterable[Manifest]) -> tuple[Accelerator | None, ...]:
        """Of each pod what its engine computes on; None where it has not answered, or is of a
        release that does not say."""
        return tuple(await asyncio.gather(*(self._of(engine) for engine in engines)))

    async def _of(self, engine: Manifest) -> Accelerator | None:
        container = _container(engine)
        if (known := self._known.get(container)) is not None:
            return known
        try:
            report = await self._ask(engine)
        except (OSError, TimeoutError, ValidationError) as error:
            name = engine["metadata"]["name"]
            logger.info("engine not asked", extra=fields(pod=name, error=type(error).__name__))
            return None
        if container and report.accelerator is not None:
            self._known[container] = report.accelerator
            while len(self._known) > MAX_KEPT:
                del self._known[next(iter(self._known))]
        return report.accelerator

    async def _ask(self, engine: Manifest) -> LoadReport:
        address = (engine.get("status") or {}).get("podIP")
        if not address:
            raise OSError("the pod has no address")
        host = f"[{address}]" if ":" in address else address
        return LoadReport.model_validate_json(
            await self._fetch(f"http://{host}:{ports.ENGINE_HTTP}/load"), extra="ignore"
        )


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


def _container(engine: Manifest) -> str:
    """Changes with each start of the pod's containers."""
    statuses = (engine.get("status") or {}).get("containerStatuses") or ()
    return ",".join(sorted(str(status.get("containerID", "")) for status in statuses))
