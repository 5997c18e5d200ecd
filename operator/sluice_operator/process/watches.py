"""Runs Kopf in a thread with its own event loop, and restarts it whenever it ends.

Kopf ends itself on normal events of a watch: an ERROR event, a cut line, a removed kind, a revoked
right. It also ends every other task of its event loop. In its own thread it does not affect the
Lease and the workers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

import kopf

from sluice_operator.clock import Clock
from sluice_operator.handlers import registered
from sluice_operator.informer.rights import Rights
from sluice_operator.informer.watch import NEEDED, Informer
from sluice_operator.informer.workqueue import Backoff
from sluice_operator.kube.connection import log_in
from sluice_operator.kube.errors import OperatorError
from sluice_operator.kube.kinds import Kind
from sluice_operator.log import fields
from sluice_operator.process.tasks import ThreadRun

AGAIN: Final = Backoff(first_seconds=0.25, cap_seconds=5.0)
END_SECONDS: Final = 5.0
"""How long Kopf may take to end."""
IDENTITY: Final[Any] = "sluice-operator"
"""A fixed identity among Kopf's peers, of which there are none: otherwise Kopf asks for the
process's user name, which a pod does not have."""
LASTING_SECONDS: Final = 60.0
"""Seconds after which a run of Kopf no longer counts as a failure to start."""

logger = logging.getLogger(__name__)


class Watches:
    """What Kopf watches goes to `informer`, where `rights` allows it."""

    def __init__(
        self,
        informer: Informer,
        rights: Rights,
        clock: Clock,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._informer = informer
        self._rights = rights
        self._clock = clock
        self._draw = draw

    async def run(self) -> None:
        """Watches until it is cancelled."""
        failures = 0
        while True:
            self._rights.changed.clear()
            if not (namespaces := self._rights.usable):
                await self._rights.changed.wait()
                continue
            began_at = self._clock.monotonic()
            error = await self._watch(namespaces)
            if self._clock.monotonic() - began_at >= LASTING_SECONDS or error is None:
                failures = 0
            if error is not None:
                failures += 1
                logger.warning("watches begin anew", extra=fields(error=repr(error)))
                await self._clock.sleep(AGAIN.delay_seconds(failures, self._draw()))

    async def _watch(self, namespaces: tuple[str | None, ...]) -> BaseException | None:
        """One run of Kopf: until it fails, with that error, or another should begin."""
        await self._check_optional()
        try:
            await self._informer.list_all(namespaces)
        except OperatorError as error:
            return error
        run = ThreadRun("kopf", partial(self._operator, namespaces, asyncio.get_running_loop()))
        reasons = (self._rights.changed, self._informer.has_missed)
        others = [asyncio.create_task(reason.wait()) for reason in reasons]
        self._informer.has_missed.clear()
        try:
            either: list[asyncio.Future[Any]] = [run.ended, *others]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for other in others:
                other.cancel()
            run.cancel()
            await asyncio.wait([run.ended], timeout=END_SECONDS)
        return run.ended.result() if run.ended.done() else TimeoutError("Kopf does not end")

    async def _check_optional(self) -> None:
        """Drops optional kinds that may not be watched: Kopf would end because of them, again and
        again."""
        optional = self._informer.kinds[len(NEEDED) :]
        allowed = await asyncio.gather(*map(self._rights.can_follow, optional))
        if not all(allowed):
            names = [kind.plural for kind, may in zip(optional, allowed, strict=True) if not may]
            raise OperatorError(f"may not be followed any more: {', '.join(names)}")

    async def _operator(
        self, namespaces: tuple[str | None, ...], loop: asyncio.AbstractEventLoop
    ) -> None:
        def take(kind: Kind, change: str, item: Mapping[str, Any]) -> None:
            loop.call_soon_threadsafe(self._informer.take, kind, change, item)

        async def begin(path: str) -> str | None:
            version = self._informer.version_to_watch(path)
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(version, loop))

        async with AsyncExitStack() as sessions:
            await kopf.operator(
                registry=registered(self._informer.kinds, take, begin, log_in, sessions),
                clusterwide=None in namespaces,
                namespaces=[name for name in namespaces if name is not None],
                standalone=True,
                identity=IDENTITY,
                memo=(),
            )
