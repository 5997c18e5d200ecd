"""A running router: every part put together, from the first list of engines to the last byte.

The composition root's body; `__main__` adds the command line and signals.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack

import aiohttp
from aiohttp import web
from sluice_contract.base import ConfigError
from sluice_contract.http_errors import MAX_HEADER_BYTES, MAX_HEADERS
from sluice_contract.labels import Role
from sluice_contract.router_config import RouterConfig

from sluice_router.app import Parts, build_app
from sluice_router.discovery import SliceFollower, slice_client
from sluice_router.dispatch import Dispatcher
from sluice_router.engines import Endpoint, Phase
from sluice_router.fleet import Fleet
from sluice_router.kube import Cluster, in_cluster
from sluice_router.lifecycle import Lifecycle
from sluice_router.load_poller import LoadPoller
from sluice_router.telemetry import Telemetry
from sluice_router.upstream import open_session

logger = logging.getLogger("sluice.router")

LAST_WORDS_SECONDS = 2.0
"""What handlers get to return once their requests are over."""
LIBRARY_HEADERS = 4 * MAX_HEADERS
LIBRARY_HEADER_BYTES = 8 * MAX_HEADER_BYTES
"""Where the HTTP library stops reading, in its own words; below, the refusal is ours."""


async def serve(
    config: RouterConfig,
    environ: Mapping[str, str],
    stop: asyncio.Event,
    started: asyncio.Future[int] | None = None,
) -> None:
    """Serve until `stop` is set, then drain. `started` gets the port that is listened on."""
    cluster = in_cluster(environ) if config.discovery is not None else None
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            open_session(config.upstream.connect_timeout_seconds)
        )
        parts = _parts(config, session)
        follow = _engine_source(config, cluster, environ, session, parts.fleet)
        poller = LoadPoller(parts.fleet, session, config.load, random.Random())  # noqa: S311
        runner = await _listen(config, environ, parts)
        stack.push_async_callback(runner.cleanup)
        port = runner.addresses[0][1]
        logger.info("listening on %s port %d", _hosts(config, environ)[0], port)
        if started is not None:
            started.set_result(port)
        tasks = [asyncio.create_task(poller.run())]
        if follow is not None:
            tasks.append(asyncio.create_task(follow.run()))
        stack.push_async_callback(_end, tasks)
        await _until(stop, tasks)
        logger.info("draining: %d requests in flight", parts.lifecycle.inflight)
        server = config.server
        await parts.lifecycle.drain(server.lame_duck_seconds, server.drain_seconds)
        logger.info("drained")


def _parts(config: RouterConfig, session: aiohttp.ClientSession) -> Parts:
    clock = time.monotonic
    fleet = Fleet(clock)
    telemetry = Telemetry()
    dispatcher = Dispatcher(
        fleet, session, config.upstream, config.load.stale_seconds, clock, telemetry.retry
    )
    lifecycle = Lifecycle(config.upstream.request_timeout_seconds)
    return Parts(fleet, dispatcher, lifecycle, telemetry, clock)


def _engine_source(
    config: RouterConfig,
    cluster: Cluster | None,
    environ: Mapping[str, str],
    session: aiohttp.ClientSession,
    fleet: Fleet,
) -> SliceFollower | None:
    """Fill the fleet now, or say who will."""
    if config.discovery is None or cluster is None:
        urls = config.engines or ()
        fleet.replace_endpoints(Endpoint(url, url, Role.MIXED, Phase.READY) for url in urls)
        return None
    namespace = environ.get("POD_NAMESPACE")
    if not namespace:
        raise ConfigError("POD_NAMESPACE", namespace, "the namespace of the service's engines")
    client = slice_client(session, cluster, namespace, config.discovery)
    return SliceFollower(client, fleet, config.discovery, random.Random())  # noqa: S311


def _hosts(config: RouterConfig, environ: Mapping[str, str]) -> list[str]:
    """The pod's address, and its loopback, to which `kubectl port-forward` connects."""
    if config.server.host:
        return [config.server.host]
    pod_ip = environ.get("POD_IP", "")
    loopback = "::1" if ":" in pod_ip else "127.0.0.1"
    return list(dict.fromkeys([pod_ip or loopback, loopback]))


async def _listen(config: RouterConfig, environ: Mapping[str, str], parts: Parts) -> web.AppRunner:
    runner = web.AppRunner(
        build_app(parts, config.server.max_body_bytes),
        access_log=None,
        handler_cancellation=True,
        auto_decompress=False,
        max_headers=LIBRARY_HEADERS,
        max_line_size=LIBRARY_HEADER_BYTES,
        max_field_size=LIBRARY_HEADER_BYTES,
        shutdown_timeout=LAST_WORDS_SECONDS,
    )
    await runner.setup()
    port = config.server.port
    try:
        for host in _hosts(config, environ):
            await web.TCPSite(runner, host, port, backlog=1024).start()
            port = runner.addresses[0][1]
    except OSError as error:
        await runner.cleanup()
        key = "server.port"
        raise ConfigError(
            key, port, f"a free port on {host} ({os.strerror(error.errno or 0)})"
        ) from None
    return runner


async def _until(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for the stop; a background task that ends is a bug of ours and is raised."""
    stopped = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    for task in done & set(tasks):
        await task


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
