"""The engines that are known now, by discovery, load reports and requests.

Holds one frozen `EngineState` per engine, replaces it on every change, and wakes those who wait for
a usable engine. Lives on one event loop. Knows neither HTTP nor how engines are found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from sluice_contract.wire.load import LoadReport

from sluice_router.engines import (
    PUBLIC_SECONDS,
    Endpoint,
    EngineState,
    ReceivedReport,
    break_seconds,
)

Clock = Callable[[], float]
"""Monotonic seconds."""


class Fleet:
    """Every engine's state, by key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, EngineState] = {}
        self._inflight: dict[str, int] = {}
        self._changed = asyncio.Event()
        self.discovered = False
        """Whether the list of engines was ever read."""

    def engines(self) -> tuple[EngineState, ...]:
        """All engines, in order of discovery."""
        return tuple(self._states.values())

    def replace_endpoints(self, endpoints: Iterable[Endpoint]) -> None:
        """Set the list of engines; what is known about those that stay is kept."""
        self._states = {
            endpoint.key: replace(self._known(endpoint), endpoint=endpoint)
            for endpoint in endpoints
        }
        self.discovered = True
        self._wake()

    def report(self, key: str, report: LoadReport, own_inflight: int) -> None:
        """Set a load report; `own_inflight` of our requests were there when it was asked for."""
        now = self._clock()
        received = ReceivedReport(report, now, own_inflight)
        if self._update(key, received=received, unreachable=False):
            refused = self._states[key].refused_private_seconds
            if refused is not None and now - refused >= PUBLIC_SECONDS:
                self._update(key, refused_private_seconds=None)
            self._wake()

    def unreachable(self, key: str) -> None:
        """The engine could not be connected to: no requests until a report arrives."""
        self._update(key, unreachable=True)

    def failed(self, key: str) -> None:
        """An attempt failed: no requests for a moment."""
        state = self._states.get(key)
        if state is not None:
            failures = state.failures + 1
            until = self._clock() + break_seconds(failures)
            self._update(key, failures=failures, failed_until_seconds=until)

    def refused_private_call(self, key: str) -> None:
        """The engine did not take our signature: no private calls for a while."""
        self._update(key, refused_private_seconds=self._clock())

    def answered(self, key: str) -> None:
        """An attempt was answered: forget earlier failures."""
        state = self._states.get(key)
        if state is not None and state.failures:
            self._update(key, failures=0, failed_until_seconds=0.0)
            self._wake()

    @contextmanager
    def request(self, key: str) -> Iterator[None]:
        """Count one request of the engine, also after the engine has left the list."""
        self._count(key, 1)
        self._update(key, picked_seconds=self._clock())
        try:
            yield
        finally:
            self._count(key, -1)

    async def wait_for_change(self, timeout_seconds: float) -> None:
        """Return when an engine came, left or changed, but no later than the time-out or the
        end of the next break."""
        now = self._clock()
        ends = (s.failed_until_seconds - now for s in self._states.values())
        limit = min((end for end in ends if end > 0), default=timeout_seconds)
        try:
            async with asyncio.timeout(min(limit, timeout_seconds)):
                await self._changed.wait()
        except TimeoutError:
            return

    def _known(self, endpoint: Endpoint) -> EngineState:
        fresh = EngineState(endpoint, inflight=self._inflight.get(endpoint.key, 0))
        return self._states.get(endpoint.key, fresh)

    def _count(self, key: str, step: int) -> None:
        count = self._inflight.get(key, 0) + step
        self._inflight[key] = count
        if not count:
            del self._inflight[key]
        self._update(key, inflight=count)

    def _update(self, key: str, **changes: object) -> bool:
        state = self._states.get(key)
        if state is not None:
            self._states[key] = replace(state, **changes)  # type: ignore[arg-type]
        return state is not None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
