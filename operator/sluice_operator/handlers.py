"""Every decorator of the operator: what Kopf watches, and which function is called.

Kopf holds the watches, which begin at the version of the informer's listings. There are no change
handlers, daemons or timers: these would put annotations and finalizers on users' objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, Final

import aiohttp
import kopf
from sluice_contract.cluster.list_watch import SILENCE_SECONDS
from yarl import URL

from sluice_operator.informer.watch import selector_of
from sluice_operator.kube.connection import LogIn
from sluice_operator.kube.kinds import Kind, Manifest

Take = Callable[[Kind, str, Mapping[str, Any]], None]
"""Called with a kind, the type of an event and the object."""
Begin = Callable[[str], Awaitable[str | None]]
"""Called with the path of a watch that begins. Returns the version to begin at; None: the watch is
not the operator's."""
Review = Callable[[Manifest | None, Manifest], Sequence[str]]
"""Called with the object as it is (None: it is created) and as it would be. Returns the reasons to
refuse the change."""


def registered(
    kinds: Iterable[Kind],
    take: Take,
    begin: Begin,
    log_in: Callable[[], Awaitable[LogIn]],
    sessions: AsyncExitStack,
) -> kopf.OperatorRegistry:
    """The handlers of one run of Kopf, which follows `kinds`. `sessions` closes the sessions that
    they open: a run that is cancelled during its end, or just after its log-in, leaves them
    open."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        adjust(settings, kinds)

    @kopf.on.login(registry=registry)
    async def connect(**_: Any) -> kopf.AiohttpSession:
        session = as_session(as_connection_info(await log_in()), begin)
        await sessions.enter_async_context(session.aiohttp_session)
        return session

    for kind in kinds:

        @kopf.on.event(kind.group, kind.version, kind.plural, param=kind, registry=registry)
        async def changed(*, event: kopf.RawEvent, param: Any = None, **_: Any) -> None:
            # Until a watch's first bookmark, Kopf takes new objects for ones that existed before.
            take(param, event["type"] or "ADDED", event["object"])

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        end_watches()

    return registry


INITIAL: Final = "sendInitialEvents"
UNPROCESSABLE: Final = 422


def admitting(
    kind: Kind, review: Review, server: kopf.WebhookServer, log_in: Callable[[], Awaitable[LogIn]]
) -> kopf.OperatorRegistry:
    """The handlers of a run of Kopf that watches nothing. It answers the API server's admission
    requests for objects of `kind`; the install registers the webhook, so Kopf writes nothing."""
    registry = kopf.OperatorRegistry()

    @kopf.on.startup(registry=registry)
    async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
        adjust(settings, ())
        settings.admission.server = server

    @kopf.on.login(registry=registry)
    async def connect(**_: Any) -> kopf.ConnectionInfo:
        return as_connection_info(await log_in())

    @kopf.on.validate(kind.group, kind.version, kind.plural, id=kind.plural, registry=registry)
    async def validate(*, old: Any = None, new: Any = None, **_: Any) -> None:
        if new is not None and (lines := review(old and dict(old), dict(new))):
            raise kopf.AdmissionError("\n  ".join(("", *lines)), code=UNPROCESSABLE)

    return registry


ERROR_BACKOFFS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 5.0)
"""Seconds between Kopf's tries of a failed request. After the last one Kopf ends and is restarted,
with the current rights, a new log-in and new certificates.
"""
WORKERS: Final = 20
IDLE_SECONDS: Final = 0.01
"""Seconds until Kopf ends the task of an object that no longer changes. A task holds the parsed
object, so few should exist.
"""


def adjust(settings: kopf.OperatorSettings, kinds: Iterable[Kind]) -> None:
    """Limits Kopf to watching: it writes nothing and scans nothing."""
    settings.persistence.progress_storage = NoProgress()
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.process.ultimate_exiting_timeout = None
    settings.networking.error_backoffs = ERROR_BACKOFFS
    settings.watching.inactivity_timeout = SILENCE_SECONDS
    settings.watching.initial_streaming = True
    settings.queueing.worker_limit = WORKERS
    settings.queueing.idle_timeout = IDLE_SECONDS
    settings.queueing.exit_timeout = 0.0
    for kind in kinds:
        if selector := selector_of(kind):
            settings.watching.label_selectors[kind.group, kind.version, kind.plural] = selector


def end_watches() -> None:
    """Ends the watches that Kopf 1.45 leaves running when one of them has failed. Kopf would cancel
    them after five seconds, together with what they wait for. A watch that is about to begin takes
    this for a pause and never ends."""
    for task in asyncio.all_tasks():
        if task.get_name().startswith("watcher for "):
            task.cancel()


def as_connection_info(log_in: LogIn) -> kopf.ConnectionInfo:
    """The log-in as Kopf's type."""
    configuration = log_in.configuration
    scheme, _, token = configuration.api_key.get("BearerToken", "").partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme or None,
        token=token or None,
        proxy_url=configuration.proxy,
    )


def as_session(info: kopf.ConnectionInfo, begin: Begin) -> kopf.AiohttpSession:
    """A session whose watches begin where a listing of ours ended. Kopf would have the API server
    stream everything that there is, parse it once more and run a handler for each object."""
    base = URL(info.server).path.rstrip("/")

    async def from_listing(
        request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        if INITIAL in request.url.query:
            version = await begin(request.url.path.removeprefix(base))
            if version is not None:
                url = request.url.without_query_params(INITIAL, "resourceVersionMatch")
                request.url = url.update_query(resourceVersion=version)
        return await send(request)

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        middlewares=(from_listing,),
    )
    return kopf.AiohttpSession(server=info.server, aiohttp_session=session)


class NoProgress(kopf.ProgressStorage):
    """Stores no handler progress on objects."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass

    def purge(self, **_: Any) -> None:
        pass

    def touch(self, **_: Any) -> None:
        pass

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


class NoDiffBase(kopf.DiffBaseStorage):
    """Stores no former state on objects, and copies nothing to compare."""

    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        pass
