"""Answers the API server before it stores an InferenceService, with a certificate that is renewed.

Kopf's webhook server runs in its own thread, and is restarted whenever it ends. A defect here
refuses nothing: the operator then refuses wrong specs itself, as without admission.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import kopf

from sluice_operator.clock import Clock
from sluice_operator.handlers import admitting
from sluice_operator.informer.workqueue import Backoff
from sluice_operator.kube.connection import log_in
from sluice_operator.kube.kinds import INFERENCE_SERVICE, Manifest
from sluice_operator.log import fields
from sluice_operator.process.tasks import ThreadRun, until_one_ends
from sluice_operator.process.watches import END_SECONDS, IDENTITY
from sluice_operator.service.resolve.spec_errors import SpecErrors, new_findings

AGAIN: Final = Backoff(first_seconds=0.25, cap_seconds=5.0)
LOOK_SECONDS: Final = 2.0
"""Seconds between two readings of the files. The kubelet takes up to a minute to bring new ones."""
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoint:
    """Where to listen, and the folder with certificate and key."""

    address: str
    port: int
    folder: Path


class Admission:
    """Refuses new objects and changes for `spec_errors`."""

    def __init__(
        self,
        endpoint: Endpoint,
        spec_errors: SpecErrors,
        clock: Clock,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._endpoint = endpoint
        self._spec_errors = spec_errors
        self._clock = clock
        self._draw = draw

    async def run(self) -> None:
        """Serves until it is cancelled. Without a certificate it waits for one."""
        failures = 0
        while True:
            error = await self._serve(await self._first_certificate())
            failures += 1
            logger.warning("admission begins anew", extra=fields(error=repr(error)))
            await self._clock.sleep(AGAIN.delay_seconds(failures, self._draw()))

    def review(self, old: Manifest | None, new: Manifest) -> tuple[str, ...]:
        """Why `new` is refused in the place of `old`: a line for each finding."""
        metadata = new.get("metadata") or {}
        service = f"{metadata.get('namespace')}/{metadata.get('name')}"
        try:
            findings = new_findings(old, new, self._spec_errors)
        except Exception:
            logger.exception("admission failed", extra=fields(service=service))
            return ()
        if findings:
            extra = fields(service=service, findings=len(findings), first=findings[0])
            logger.info("refused at admission", extra=extra)
        return tuple(map(str, findings))

    async def _first_certificate(self) -> Pair:
        """The certificate, once the folder has one that can be used."""
        is_logged = False
        while (pair := usable_pair(self._endpoint.folder)) is None:
            if not is_logged:
                where = str(self._endpoint.folder)
                logger.warning("no certificate for admission yet", extra=fields(folder=where))
                is_logged = True
            await self._clock.sleep(LOOK_SECONDS)
        return pair

    async def _serve(self, pair: Pair) -> BaseException | None:
        """One run of Kopf: until it fails, with that error."""
        run = ThreadRun("admission", partial(self._with_renewal, pair))
        try:
            await asyncio.wait([run.ended])
        finally:
            run.cancel()
            await asyncio.wait([run.ended], timeout=END_SECONDS)
        return run.ended.result()

    async def _with_renewal(self, pair: Pair) -> None:
        """Runs server and renewal in one event loop, so that no handshake is under way while the
        certificate changes."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        parts: tuple[Coroutine[Any, Any, None], ...] = (
            self._operator(context),
            self._renew(context, pair),
        )
        await until_one_ends([asyncio.create_task(part) for part in parts])

    def _operator(self, context: ssl.SSLContext) -> Coroutine[Any, Any, None]:
        folder = self._endpoint.folder
        server = kopf.WebhookServer(
            addr=self._endpoint.address,
            port=self._endpoint.port,
            context=context,
            certfile=folder / CERTIFICATE,
            pkeyfile=folder / KEY,
            file_check_interval=math.inf,  # its own way closes the port for a moment
        )
        return kopf.operator(
            registry=admitting(INFERENCE_SERVICE, self.review, server, log_in),
            clusterwide=True,
            standalone=True,
            identity=IDENTITY,
            memo=(),
        )

    async def _renew(self, context: ssl.SSLContext, pair: Pair) -> None:
        """Renews the certificate of the server; open connections keep theirs."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            renewed = usable_pair(self._endpoint.folder, pair)
            if renewed is not None:
                context.load_cert_chain(renewed.folder / CERTIFICATE, renewed.folder / KEY)
                pair = renewed
                logger.info("admission has another certificate")


@dataclass(frozen=True)
class Pair:
    """A certificate, and the folder with it and its key."""

    folder: Path
    certificate: bytes


def usable_pair(folder: Path, former: Pair | None = None) -> Pair | None:
    """The usable pair in `folder`; None if there is only the `former` one."""
    try:
        # The kubelet changes a link to the folder of both: what lies there belongs together.
        resolved = (folder / CERTIFICATE).resolve(strict=True).parent
        certificate = (resolved / CERTIFICATE).read_bytes()
        if former is not None and certificate == former.certificate:
            return None
        tried = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tried.load_cert_chain(resolved / CERTIFICATE, resolved / KEY)
    except (OSError, ssl.SSLError):
        return None
    return Pair(resolved, certificate)
