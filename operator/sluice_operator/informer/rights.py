"""Whether the needed kinds may be listed and watched, namespace by namespace.

Checked before a standby is ready, as it may have to lead, and repeatedly after that, as rights
change. A namespace with a missing right is not served; the others are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import aclosing
from typing import Final

from sluice_operator.clock import Clock
from sluice_operator.informer.blocked import Access, BlockedKinds, Verb
from sluice_operator.informer.watch import NEEDED
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.connection import Request, Streams
from sluice_operator.kube.errors import ApiError, OperatorError
from sluice_operator.kube.kinds import Kind

AGAIN_SECONDS: Final = 5.0
"""How often to ask while something is missing."""
CALM_SECONDS: Final = 60.0
"""How often to ask otherwise, for each namespace at most."""
WATCH_SECONDS: Final = 1
"""Seconds of a watch that only tests whether watching is allowed."""


class Rights:
    """Kinds that may be followed. `namespaces`: the served namespaces; none means all together."""

    def __init__(
        self,
        client: ApiClient,
        streams: Streams,
        clock: Clock,
        blocked: BlockedKinds,
        namespaces: tuple[str, ...],
    ) -> None:
        self.usable: tuple[str | None, ...] = ()
        """Where everything needed may be followed, as far as is known."""
        self.changed = asyncio.Event()
        """Set whenever `usable` has changed."""
        self.has_looked = asyncio.Event()
        self.are_complete = asyncio.Event()
        """Set once nothing was missing anywhere."""
        self._client = client
        self._streams = streams
        self._clock = clock
        self._blocked = blocked
        self._namespaces = namespaces or (None,)

    async def run(self) -> None:
        """Asks until it is cancelled."""
        while True:
            await self.look()
            is_calm = self.usable == self._namespaces
            await self._clock.sleep(CALM_SECONDS * len(self.usable) if is_calm else AGAIN_SECONDS)

    async def look(self) -> None:
        """Checks everything once; listings first, which are quick."""
        self._note([name for name in self._namespaces if await self._may("list", name)])
        if self.usable == self._namespaces:
            self.are_complete.set()
        self.has_looked.set()
        self._note([name for name in self.usable if await self._may("watch", name)])

    async def can_follow(self, kind: Kind) -> bool:
        """Whether an optional kind may be watched everywhere, as far as is known."""
        errors = (self._error("watch", kind, name) for name in self._namespaces)
        return not any(isinstance(error, ApiError) for error in await asyncio.gather(*errors))

    def _note(self, usable: Iterable[str | None]) -> None:
        before, self.usable = self.usable, tuple(usable)
        if self.usable != before:
            self.changed.set()

    async def _may(self, verb: Verb, namespace: str | None) -> bool:
        """Whether the operator may list, or watch, all needed kinds in one namespace."""
        errors = await asyncio.gather(*(self._error(verb, kind, namespace) for kind in NEEDED))
        for kind, error in zip(NEEDED, errors, strict=True):
            if error is None:
                self._blocked.succeeded(Access(verb, kind, namespace))
            else:
                self._blocked.failed(Access(verb, kind, namespace), error)
        # An outage is no missing right: kinds that are followed already stay followed.
        return not any(isinstance(error, ApiError) for error in errors)

    async def _error(self, verb: Verb, kind: Kind, namespace: str | None) -> OperatorError | None:
        try:
            version = await self._client.version_of_list(kind, namespace)
            if verb == "watch":
                await self._begin_watch(kind, namespace, version)
        except OperatorError as error:
            return error
        return None

    async def _begin_watch(self, kind: Kind, namespace: str | None, version: str) -> None:
        query = {"watch": "true", "timeoutSeconds": str(WATCH_SECONDS), "resourceVersion": version}
        lines = self._streams.lines(Request("GET", path(kind, namespace), query))
        try:
            async with asyncio.timeout(2 * WATCH_SECONDS), aclosing(lines):
                async for _ in lines:
                    return
        except TimeoutError:  # it was begun, and is merely silent
            return
