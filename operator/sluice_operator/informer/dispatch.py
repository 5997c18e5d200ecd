"""The workers: take a key, reconcile it, and put it back with a delay if that failed.

Failures are spaced, counted and logged here.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from sluice_operator.clock import Clock
from sluice_operator.informer.keys import Key
from sluice_operator.informer.workqueue import Backoff, WorkQueue
from sluice_operator.kube.errors import (
    ApiError,
    ConflictError,
    RequestError,
    TerminatingNamespaceError,
    UnavailableError,
)
from sluice_operator.log import fields

Reconcile = Callable[[Key], Awaitable[float | None]]
"""Reconciles a key. May return the seconds until another reconcile, for changes that no event
announces."""

FAILURE: Final = Backoff(first_seconds=0.25, cap_seconds=120)
"""Delay after a defect: long, but short enough that the alert SluiceReconcileErrors counts it."""
REFUSED: Final = Backoff(first_seconds=0.25, cap_seconds=30)
"""Delay after a refusal: a person has to change something, which should be noticed soon."""
TRANSIENT: Final = Backoff(first_seconds=0.25, cap_seconds=5)
"""Delay after a write conflict, or while the API server is down."""

logger = logging.getLogger(__name__)


class ReconcileMetrics(Protocol):
    """Counts reconciles."""

    def reconciled(self, kind: str, seconds: float) -> None: ...

    def failed(self, kind: str, error: Exception, seconds: float) -> None: ...


class Dispatcher:
    """Feeds the reconcile of each kind from one queue. `draw` is uniform in [0, 1)."""

    def __init__(
        self,
        queue: WorkQueue[Key],
        reconciles: Mapping[str, Reconcile],
        metrics: ReconcileMetrics,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        self._queue = queue
        self._reconciles = reconciles
        self._metrics = metrics
        self._clock = clock
        self._draw = draw
        self._failures: dict[Key, int] = {}
        self._terminating: set[str] = set()
        """Namespaces of which it was logged that they are being deleted."""

    async def work(self) -> None:
        """Runs one worker until it is cancelled."""
        while True:
            key = await self._queue.take()
            self._queue.done(key, await self._attempt(key))

    async def _attempt(self, key: Key) -> float | None:
        """Reconciles once; returns the seconds after which to take the key again, if at all."""
        started_at = self._clock.monotonic()
        try:
            look_again_seconds = await self._reconciles[key.kind](key)
        except TerminatingNamespaceError:
            look_again_seconds = None  # another try would be refused, too
            self._note_terminating(key.namespace)
        except Exception as error:
            seconds = self._clock.monotonic() - started_at
            self._metrics.failed(key.kind, error, seconds)
            return self._failed(key, error)
        self._metrics.reconciled(key.kind, self._clock.monotonic() - started_at)
        self._failures.pop(key, None)
        return look_again_seconds

    def _note_terminating(self, namespace: str) -> None:
        if namespace not in self._terminating:
            self._terminating.add(namespace)
            text = "namespace is being deleted: nothing is created in it any more"
            logger.info(text, extra=fields(namespace=namespace))

    def _failed(self, key: Key, error: Exception) -> float:
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        seconds = _policy(error).delay_seconds(failures, self._draw())
        if isinstance(error, UnavailableError) and error.retry_after_seconds is not None:
            seconds = max(seconds, error.retry_after_seconds)
        trace = not isinstance(error, RequestError)
        logger.warning(
            "reconcile failed",
            extra=fields(
                kind=key.kind,
                namespace=key.namespace,
                name=key.name,
                failures=failures,
                again_seconds=round(seconds, 1),
                error=error,
            ),
            exc_info=trace,
        )
        return seconds


def _policy(error: Exception) -> Backoff:
    if isinstance(error, UnavailableError | ConflictError):
        return TRANSIENT
    return REFUSED if isinstance(error, ApiError) else FAILURE
