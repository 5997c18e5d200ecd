"""Asks the routers of a service for its load, all at the same time, and merges their answers into
one sample.

A router without a valid answer in time is left out. A router may be newer than this operator, so
unknown keys are ignored.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final, Protocol

import aiohttp
from pydantic import ValidationError
from sluice_autoscaler.sample import EngineSample, PoolSample, Sample
from sluice_contract.cluster.labels import Role
from sluice_contract.cluster.ports import ROUTER_METRICS
from sluice_contract.wire.load import EngineLoad, LoadReport, ServiceLoad

from sluice_operator.log import fields
from sluice_operator.scaled import Look

TIMEOUT_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 2.0
"""Delay before a router that did not answer (it may be restarting) is asked again about a
request."""
MAX_BYTES: Final = 32 * 2**20
"""Maximum size of one response, enough for ten thousand engines of three kilobytes each."""

Reported = tuple[EngineLoad, LoadReport]
"""A row of a router, and the report in it."""

logger = logging.getLogger(__name__)


class LoadQuery(Protocol):
    """Reads the load of services."""

    async def __call__(self, routers: Iterable[str]) -> tuple[ServiceLoad, ...]:
        """Load reports of the routers, without routers that do not answer."""
        ...

    async def quiet(self, routers: Iterable[str], seconds: float) -> None:
        """Returns after `seconds`, or sooner: once one of the routers serves a request."""
        ...


class RouterQuery:
    """`LoadQuery` over HTTP, at the routers' monitoring port, through connections that stay
    open."""

    def __init__(self, session: aiohttp.ClientSession, port: int = ROUTER_METRICS) -> None:
        self._session = session
        self._port = port

    async def __call__(self, routers: Iterable[str]) -> tuple[ServiceLoad, ...]:
        """Load reports of the routers that answer; see `LoadQuery`."""
        loads = await asyncio.gather(*(self._ask(address) for address in routers))
        return tuple(load for load in loads if load is not None)

    async def quiet(self, routers: Iterable[str], seconds: float) -> None:
        """Waits until a router serves a request; see `LoadQuery`. A router that does not answer
        serves nothing, and is asked again."""
        waits = [asyncio.create_task(self._quiet(address, seconds)) for address in routers]
        if not waits:
            await asyncio.sleep(seconds)
            return
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _quiet(self, address: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            if await self._ask(address, left) is not None:
                return
            await asyncio.sleep(min(AGAIN_SECONDS, left))

    async def _ask(self, address: str, wait_seconds: float = 0.0) -> ServiceLoad | None:
        host = f"[{address}]" if ":" in address else address
        url = f"http://{host}:{self._port}/load"
        query = {"wait": f"{wait_seconds:g}"} if wait_seconds else {}
        limit = asyncio.timeout(wait_seconds + TIMEOUT_SECONDS)
        try:
            async with (
                limit,
                self._session.get(url, params=query, allow_redirects=False) as response,
            ):
                if response.status != 200:  # a redirect may come with a body, too
                    raise OSError(f"status {response.status}")
                body = await response.content.read(MAX_BYTES)
                while chunk := await response.content.read(MAX_BYTES - len(body)):
                    body += chunk
            if len(body) >= MAX_BYTES:
                logger.error("load too large", extra=fields(router=address, maximum=MAX_BYTES))
                return None
            return _load_of(body, address)
        except (TimeoutError, aiohttp.ClientError, OSError, ValidationError) as error:
            logger.debug("no load", extra=fields(router=address, error=repr(error)))
            return None


def _load_of(body: bytes, address: str) -> ServiceLoad:
    """The load in a response. Counts of a canary that are not valid are left out: another release's
    router may write them differently, and scaling does not need them. Raises ValidationError if
    anything else is not valid."""
    try:
        return ServiceLoad.model_validate_json(body, extra="ignore")
    except ValidationError as error:
        if any(each["loc"][:1] != ("canary",) for each in error.errors()):
            raise
        logger.warning("no counts", extra=fields(router=address, error=repr(error)))
        rest = {key: value for key, value in json.loads(body).items() if key != "canary"}
        return ServiceLoad.model_validate_json(json.dumps(rest), extra="ignore")


def query_session() -> aiohttp.ClientSession:
    """A session of its own, as routers are not the API server; never through a proxy."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60), trust_env=False
    )


def sample_of(
    loads: Iterable[ServiceLoad], pools: Mapping[Role, PoolSample], time_seconds: float
) -> Sample:
    """The service as its routers see it. Waiting requests of all routers are added up; of each
    engine the freshest report counts. A router that has not found its engines yet is not
    counted. The phases of a pool's start are all of one pod, the pool's `start_pod`."""
    answered = tuple(loads)
    waiting = sum(load.waiting_requests for load in answered)
    discovered = [load for load in answered if load.discovered]
    if not discovered:
        return Sample(time_seconds, pools, None, waiting)
    reports = _freshest(discovered)
    engines = tuple(_engine(row, report) for row, report in reports)
    started = {row.name: report.start for row, report in reports}
    pools = {
        role: replace(pool, start_phases={**pool.start_phases, **started.get(pool.start_pod, {})})
        for role, pool in pools.items()
    }
    ready = {row.name for load in discovered for row in load.engines if row.condition == "ready"}
    return Sample(time_seconds, pools, engines, waiting, len(ready - started.keys()))


def look_of(loads: Iterable[ServiceLoad], time: datetime, asked: int) -> Look:
    """What routers count for a canary, and the engines by their freshest reports. `asked`: how many
    were asked."""
    answered = tuple(loads)
    counts = tuple(load.canary for load in answered if load.canary is not None)
    engines = tuple(_engine(row, report) for row, report in _freshest(answered))
    return Look(time, counts, engines, asked, len(answered))


def _freshest(loads: Iterable[ServiceLoad]) -> tuple[Reported, ...]:
    """Each engine's freshest row that has a report, by name."""
    best: dict[str, EngineLoad] = {}
    for engine in (engine for load in loads for engine in load.engines):
        if engine.report is None:
            continue
        freshest = best.get(engine.name)
        if freshest is None or _age(engine) < _age(freshest):
            best[engine.name] = engine
    return tuple((best[name], report) for name in sorted(best) if (report := best[name].report))


def _age(engine: EngineLoad) -> float:
    return math.inf if engine.report_age_seconds is None else engine.report_age_seconds


def _engine(row: EngineLoad, report: LoadReport) -> EngineSample:
    return EngineSample(
        name=row.name,
        role=report.role,
        epoch=report.epoch,
        condition=row.condition,
        age_seconds=_age(row),
        revision=report.revision,
        max_running_requests=report.max_running_requests,
        figures=report.figures,
        slo=report.slo,
    )
