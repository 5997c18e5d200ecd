"""Leader election with a Lease object: one replica writes, the others stand by.

A standby trusts only its own clock: it takes over when the Lease has not changed for the duration
stated in it. The holder gives up earlier than that.

A thread renews the Lease, so no work of the main loop delays that. It renews only while the main
loop beats: a loop that hangs loses the Lease. Every write first calls `write_seconds`, so nothing
is sent without the Lease. Earlier requests end at most `grace` after its loss. The thread then has
the process ended, even if the main loop hangs. Only after that may another replica lead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from sluice_operator.clock import Clock, micro_time
from sluice_operator.kube.errors import ConflictError, LeaseLostError, RequestError
from sluice_operator.kube.kinds import Kind, Manifest
from sluice_operator.log import fields

LEASE: Final = Kind("coordination.k8s.io/v1", "Lease", "leases")
RELEASE_SECONDS: Final = 3.0
"""How long releasing the Lease may take at most."""

logger = logging.getLogger(__name__)


class LeaseClient(Protocol):
    """The requests that leadership needs."""

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None: ...

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest: ...

    async def replace(self, kind: Kind, manifest: Manifest) -> Manifest: ...


@dataclass(frozen=True)
class LeaseName:
    """The Lease, and the identity of this process in it."""

    namespace: str
    name: str
    identity: str


@dataclass(frozen=True)
class LeaseTiming:
    """Times of a Lease, in seconds. A holder that could not renew for two thirds of `duration`
    begins no write any more. Half of the rest is for its requests in flight and for its end, the
    other half for different clock speeds."""

    duration: int = 15

    @property
    def give_up(self) -> float:
        return self.duration * 2 / 3

    @property
    def grace(self) -> float:
        return self.duration / 6

    @property
    def renew_every(self) -> float:
        return self.duration / 5

    @property
    def retry_every(self) -> float:
        return self.duration / 15

    @property
    def look_every(self) -> float:
        return min(2.0, self.duration / 5)

    @property
    def release(self) -> float:
        return min(RELEASE_SECONDS, self.renew_every)


class Heartbeat:
    """Sign of life of the main loop, for the thread that renews a Lease of `lease_seconds`."""

    def __init__(self, clock: Clock, lease_seconds: float) -> None:
        self._clock = clock
        self._lease_seconds = lease_seconds
        self.beat()

    def beat(self) -> None:
        """Called by the main loop."""
        self._beat_at = self._clock.monotonic()

    async def run(self) -> None:
        """Beats, in the main loop, until it is cancelled."""
        while True:
            self.beat()
            await self._clock.sleep(self._lease_seconds / 30)

    @property
    def is_recent(self) -> bool:
        """Whether the main loop has beaten within half the Lease."""
        return self._clock.monotonic() - self._beat_at < self._lease_seconds / 2


class Leadership:
    """Leader election for this process: `run` in a thread, `write_seconds` in the main loop."""

    def __init__(
        self,
        client: LeaseClient,
        name: LeaseName,
        timing: LeaseTiming,
        heartbeat: Heartbeat,
        clock: Clock,
    ) -> None:
        self._client = client
        self._name = name
        self._timing = timing
        self.heartbeat = heartbeat
        self._clock = clock
        self._held: Manifest | None = None
        self._seen: Manifest | None = None
        self._seen_at = 0.0
        self._renewed_at = 0.0
        """When the last request was begun that has written it."""

    async def run(
        self, on_leading: Callable[[], object], on_lost: Callable[[BaseException], object]
    ) -> None:
        """Stands by, calls `on_leading`, and leads; calls `on_lost` with the error that ends this.

        The caller cancels this after its last write, and the Lease is released. If it was not
        cancelled `grace` after the loss, this returns, and the process has to be ended.
        """
        try:
            await self._lead(on_leading, on_lost)
        except asyncio.CancelledError:
            await self.release()
            raise

    async def _lead(
        self, on_leading: Callable[[], object], on_lost: Callable[[BaseException], object]
    ) -> None:
        try:
            await self.acquire()
            on_leading()
            await self.hold()
        except (Exception, LeaseLostError) as error:
            on_lost(error)
            logger.error("leadership lost", extra=self._fields() | fields(error=error))
            await self._clock.sleep(self._timing.grace)

    @property
    def is_held(self) -> bool:
        """Whether this process leads, and knows it."""
        return self._held is not None and self._left_seconds() > 0

    def write_seconds(self) -> float:
        """How long a write that is sent now may take.

        Raises:
            LeaseLostError: this process does not lead, or cannot know whether it still does.
        """
        if not self.is_held:
            raise LeaseLostError("the lease is not held")
        return self._left_seconds() + self._timing.grace

    async def acquire(self) -> None:
        """Returns once this process is the leader, with time left to renew the Lease: `hold` has
        to be called at once."""
        while not await self._try_acquire_safely() or self._left_seconds() <= 0:
            await self._clock.sleep(self._timing.look_every)
        logger.info("leading", extra=self._fields())

    async def hold(self) -> None:
        """Renews the Lease until it is lost.

        Raises:
            LeaseLostError: another process holds it, or it could not be renewed in time.
        """
        due_at = self._renewed_at + self._timing.renew_every
        pause_seconds = max(0.0, due_at - self._clock.monotonic())
        while True:
            await self._clock.sleep(min(pause_seconds, max(0.0, self._left_seconds())))
            if (left_seconds := self._left_seconds()) <= 0:
                raise LeaseLostError(f"could not renew for {self._timing.give_up:.0f} seconds")
            renewed = await self._renew_safely(left_seconds)
            pause_seconds = self._timing.renew_every if renewed else self._timing.retry_every

    async def release(self) -> None:
        """Lets the next replica lead at once, if this one holds the Lease; nothing is written after
        that. Best effort: the Lease runs out by itself."""
        held, self._held = self._held, None
        if held is None:
            return
        try:
            async with asyncio.timeout(self._timing.release):
                await self._update(held, holder="")
        except (RequestError, LeaseLostError, TimeoutError) as error:
            logger.info("lease not released", extra=fields(error=repr(error)))
        logger.info("leadership given up", extra=self._fields())

    async def try_acquire(self) -> bool:
        """Reads the Lease, and tries to take it if it is free; returns whether this replica has
        it."""
        lease = await self._client.get(LEASE, self._name.namespace, self._name.name)
        try:
            if lease is None:
                await self._take(self._client.create(LEASE, self._body(None, self._identity)))
            elif self._is_free(lease):
                await self._take(self._client.replace(LEASE, self._body(lease, self._identity)))
            else:
                return False
        except ConflictError:
            return False
        return True

    def _left_seconds(self) -> float:
        """Seconds until a holder that has not renewed the Lease has to stop."""
        return self._renewed_at + self._timing.give_up - self._clock.monotonic()

    async def _try_acquire_safely(self) -> bool:
        if not self.heartbeat.is_recent:
            return False
        try:
            return await self.try_acquire()
        except RequestError as error:
            logger.warning("lease not read", extra=fields(error=error))
            return False

    def _is_free(self, lease: Manifest) -> bool:
        spec = lease["spec"]
        if spec.get("holderIdentity", "") in ("", self._identity):
            return True
        if self._seen is None or self._seen["spec"]["holderIdentity"] != spec["holderIdentity"]:
            logger.info("standing by", extra=fields(leader=spec["holderIdentity"]))
        if self._seen is None or self._seen["spec"] != spec:
            self._seen, self._seen_at = lease, self._clock.monotonic()
        unchanged_seconds = self._clock.monotonic() - self._seen_at
        return unchanged_seconds >= float(spec.get("leaseDurationSeconds", 0))

    async def _renew_safely(self, left_seconds: float) -> bool:
        """Whether the Lease was renewed."""
        if not self.heartbeat.is_recent:
            logger.warning("lease not renewed: the main loop hangs")
            return False
        try:
            # One request that hangs must leave time for another attempt.
            async with asyncio.timeout(min(left_seconds, self._timing.renew_every)):
                assert self._held is not None
                await self._take(self._update(self._held, self._identity))
        except (RequestError, TimeoutError) as error:
            logger.warning("lease not renewed", extra=fields(error=repr(error)))
            return False
        return True

    async def _update(self, held: Manifest, holder: str) -> Manifest:
        try:
            return await self._client.replace(LEASE, self._body(held, holder))
        except ConflictError:
            ours = await self._still_ours()
            return await self._client.replace(LEASE, self._body(ours, holder))

    async def _take(self, write: Awaitable[Manifest]) -> None:
        """Takes the Lease that `write` returns. It counts as renewed at the time before the
        write."""
        started_at = self._clock.monotonic()
        held = await write
        self._renewed_at, self._held = started_at, held

    async def _still_ours(self) -> Manifest:
        """The current Lease, if our copy is out of date: a response was lost, somebody edited the
        Lease, or another process took it. Raises LeaseLostError in the last case."""
        lease = await self._client.get(LEASE, self._name.namespace, self._name.name)
        holder = None if lease is None else lease["spec"].get("holderIdentity")
        if lease is None or holder != self._identity:
            self._held = None
            raise LeaseLostError(f"the lease is held by {holder!r}")
        return lease

    @property
    def _identity(self) -> str:
        return self._name.identity

    def _fields(self) -> dict[str, object]:
        return fields(lease=f"{self._name.namespace}/{self._name.name}", identity=self._identity)

    def _body(self, current: Manifest | None, holder: str) -> Manifest:
        now = micro_time(self._clock.now())
        spec: dict[str, Any] = dict(current["spec"]) if current else {}
        if spec.get("holderIdentity") != holder:
            spec["leaseTransitions"] = spec.get("leaseTransitions", -1) + 1
            spec["acquireTime"] = now
        spec |= {
            "holderIdentity": holder,
            "renewTime": now,
            "leaseDurationSeconds": self._timing.duration,
        }
        metadata = {"name": self._name.name, "namespace": self._name.namespace}
        if current is not None:
            metadata["resourceVersion"] = current["metadata"]["resourceVersion"]
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata,
            "spec": spec,
        }
