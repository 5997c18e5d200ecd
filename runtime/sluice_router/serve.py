"""Builds a router from its parts, runs it, and drains it.

`__main__` adds the command line and signals.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
from aiohttp import web
from sluice_contract.base import ConfigError
from sluice_contract.cluster.labels import Role
from sluice_contract.config.router import RouterConfig
from sluice_contract.pages import PAGES
from sluice_contract.wire.handover import Keys, configured_keys
from sluice_contract.wire.span_export import span_recorder
from sluice_contract.wire.spans import Record

from sluice_router.accounting import UNKNOWN_ROUTE, Guard
from sluice_router.app import ConfiguredParts, Parts, build_app
from sluice_router.attempts import EngineCalls, Sender, open_session
from sluice_router.auth import ApiKeys, tenant_signer
from sluice_router.byte_budget import split_budget
from sluice_router.discovery import LoadPoller, SliceFollower, slice_client
from sluice_router.edge import CorsHeaders
from sluice_router.engines import Endpoint, Fleet, Phase
from sluice_router.forward import Dispatcher
from sluice_router.gate import ConnectionLimits
from sluice_router.hand_back import HandBacks
from sluice_router.kube import Cluster, in_cluster
from sluice_router.lifecycle import Lifecycle
from sluice_router.listener import Listener
from sluice_router.monitoring import Monitoring
from sluice_router.pool_roles import PoolRoles
from sluice_router.resume import PrivateCallSigner
from sluice_router.targets import chooser, prefill_signer
from sluice_router.telemetry import RouterSpans, Telemetry
from sluice_router.tenants import Uploads

logger = logging.getLogger("sluice.router")

CLEANUP_SECONDS = 2.0
"""How long handlers may take to return after draining."""


class Ports(NamedTuple):
    """Where a running router listens."""

    http: int
    metrics: int


async def serve(
    config: RouterConfig,
    environ: Mapping[str, str],
    stop: asyncio.Event,
    started: asyncio.Future[Ports] | None = None,
) -> None:
    """Serve until `stop` is set, then drain. `started` gets the ports that are listened on."""
    cluster = in_cluster(environ) if config.discovery is not None else None
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(
            open_session(config.upstream.connect_timeout_seconds)
        )
        record = stack.enter_context(_recorder(config, environ))
        fleet = Fleet(time.monotonic)
        parts = _parts(config, session, fleet, record)
        follow = _engine_source(config, cluster, environ, session, fleet)
        hand_backs = _hand_backs(config, fleet, session, parts)
        if hand_backs is not None:
            stack.push_async_callback(hand_backs.aclose)
        polled = hand_backs.look if hand_backs else None
        poller = LoadPoller(fleet, session, config.load, random.Random(), polled)  # noqa: S311
        hosts = _hosts(config, environ)
        metrics_port = await _listen_for_monitoring(config, hosts, fleet, parts, stack)
        listener, port = await _listen(config, hosts, parts, stack)
        logger.info("listening on %s port %d, metrics on port %d", hosts[0], port, metrics_port)
        if started is not None:
            started.set_result(Ports(port, metrics_port))
        tasks = [asyncio.create_task(poller.run())]
        if follow is not None:
            tasks.append(asyncio.create_task(follow.run()))
            if Role.DECODE in config.roles and (keys := _keys(config)) is not None:
                calls = EngineCalls(session, keys, time.time, _draw_id)
                roles = PoolRoles(fleet, calls, time.monotonic)
                tasks.append(asyncio.create_task(roles.run()))
        stack.push_async_callback(_end, tasks)
        await _until(stop, tasks)
        logger.info("draining: %d requests in flight", parts.lifecycle.inflight)
        server = config.server
        await parts.lifecycle.drain(
            server.lame_duck_seconds,
            server.drain_seconds,
            lambda: listener.all_closed(server.lame_duck_seconds, lambda: parts.lifecycle.is_idle),
        )
        logger.info("drained")


def _recorder(
    config: RouterConfig, environ: Mapping[str, str]
) -> AbstractContextManager[Record | None]:
    pod = environ.get("POD_NAME") or socket.gethostname()
    return span_recorder(config.tracing, "router", **{"k8s.pod.name": pod})


def _spans(config: RouterConfig, record: Record | None) -> RouterSpans | None:
    if config.tracing is None or record is None:
        return None
    ratio = config.tracing.sample_ratio
    return RouterSpans(record, ratio, random.Random().random, time.monotonic)  # noqa: S311


def _parts(
    config: RouterConfig, session: aiohttp.ClientSession, fleet: Fleet, record: Record | None
) -> Parts:
    clock, spans = time.monotonic, _spans(config, record)
    telemetry = Telemetry(config.roles)
    keys = _keys(config)
    call_signer = None if keys is None else PrivateCallSigner(keys, time.time, _draw_seed)
    sign = prefill_signer(keys, time.time) if keys is not None else None
    sign_tenant = tenant_signer(keys, config.auth, time.time) if keys and config.auth else None
    dispatcher = Dispatcher(
        fleet,
        Sender(session, sign, call_signer, sign_tenant, spans),
        config.upstream,
        chooser(config.roles, config.load.stale_seconds, random.Random()),  # noqa: S311
        clock,
        telemetry.retry,
    )
    lifecycle = Lifecycle(config.upstream.request_timeout_seconds, config.server.max_requests)
    budgets = split_budget(config.server.max_buffered_bytes)
    uploads = Uploads(config.server.max_connections) if config.auth else None
    pages = PAGES if config.page else {}
    configured = ConfiguredParts(call_signer, _guard(config), spans, uploads, pages)
    return Parts(dispatcher, budgets, lifecycle, telemetry, clock, configured)


def _hand_backs(
    config: RouterConfig, fleet: Fleet, session: aiohttp.ClientSession, parts: Parts
) -> HandBacks | None:
    """None without the key that signs the calls."""
    if (keys := _keys(config)) is None:
        return None
    calls, draw = EngineCalls(session, keys, time.time, _draw_id), random.Random().random  # noqa: S311
    load, requests = config.load, parts.dispatcher.unanswered
    return HandBacks(
        fleet, requests, calls, time.monotonic, load.stale_seconds, load.interval_seconds, draw
    )


def _guard(config: RouterConfig) -> Guard:
    auth, cors = config.auth, config.cors
    keys = ApiKeys(Path(auth.keys_directory), time.monotonic) if auth else None
    return Guard(keys, CorsHeaders(cors) if cors else None)


def _keys(config: RouterConfig) -> Keys | None:
    """Required for pairs; without it nothing is resumed."""
    if config.handover_key_file is None and Role.DECODE not in config.roles:
        return None
    return configured_keys(config.handover_key_file, time.monotonic)


def _draw_id() -> str:
    return secrets.token_hex(16)


def _draw_seed() -> int:
    return secrets.randbits(63)


def _engine_source(
    config: RouterConfig,
    cluster: Cluster | None,
    environ: Mapping[str, str],
    session: aiohttp.ClientSession,
    fleet: Fleet,
) -> SliceFollower | None:
    """Fill the fleet now, or return the follower that does."""
    if config.discovery is None or cluster is None:
        fleet.replace_endpoints(_endpoints(config))
        return None
    namespace = environ.get("POD_NAMESPACE")
    if not namespace:
        raise ConfigError("POD_NAMESPACE", namespace, "the namespace of the service's engines")
    client = slice_client(session, cluster, namespace, config.discovery)
    return SliceFollower(client, fleet, config.discovery, random.Random())  # noqa: S311


def _endpoints(config: RouterConfig) -> Iterator[Endpoint]:
    """The engines that the file itself names."""
    urls_of = {Role.PREFILL: config.prefill_engines, config.roles[-1]: config.engines}
    for role, urls in urls_of.items():
        for url in urls or ():
            yield Endpoint(url, url, role, Phase.READY)


def _hosts(config: RouterConfig, environ: Mapping[str, str]) -> list[str]:
    """The pod's address, and its loopback, to which `kubectl port-forward` connects."""
    if config.server.host:
        return [config.server.host]
    pod_ip = environ.get("POD_IP", "")
    loopback = "::1" if ":" in pod_ip else "127.0.0.1"
    return list(dict.fromkeys([pod_ip or loopback, loopback]))


async def _listen_for_monitoring(
    config: RouterConfig, hosts: Sequence[str], fleet: Fleet, parts: Parts, stack: AsyncExitStack
) -> int:
    """Open the port of probes and metrics, which is closed with the stack."""
    app = Monitoring(
        fleet,
        parts.dispatcher,
        parts.budgets,
        parts.lifecycle,
        parts.telemetry,
        parts.clock,
    ).build_app()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLEANUP_SECONDS)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    port = config.server.metrics_port
    try:
        for host in hosts:
            await web.TCPSite(runner, host, port).start()
            port = int(runner.addresses[0][1])
    except OSError as error:
        raise _port_error("server.metricsPort", port, hosts, error) from None
    return port


async def _listen(
    config: RouterConfig, hosts: Sequence[str], parts: Parts, stack: AsyncExitStack
) -> tuple[Listener, int]:
    """A listener, which ends with the stack, and its port."""
    runner = web.AppRunner(
        build_app(parts, config.server.max_body_bytes),
        handler_cancellation=True,
        shutdown_timeout=CLEANUP_SECONDS,
    )
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    listener = Listener(runner, _connection_limits(config, parts))
    stack.callback(listener.close)
    try:
        return listener, await listener.listen(hosts, config.server.port)
    except OSError as error:
        raise _port_error("server.port", config.server.port, hosts, error) from None


def _port_error(key: str, port: int, hosts: Sequence[str], error: OSError) -> ConfigError:
    allowed = f"a free port on {' and '.join(hosts)} ({os.strerror(error.errno or 0)})"
    return ConfigError(key, port, allowed)


def _connection_limits(config: RouterConfig, parts: Parts) -> ConnectionLimits:
    def count(status: int) -> None:
        parts.telemetry.request(UNKNOWN_ROUTE, status, "complete", 0.0)

    heads, uploads = parts.budgets.heads, parts.configured.uploads
    return ConnectionLimits(config.server.max_connections, heads, uploads, count)


async def _until(stop: asyncio.Event, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for `stop`; a background task that ends before it is a bug, and is raised."""
    stopped = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    for task in done & set(tasks):
        await task


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
