"""Shares of tenants: how much of one capacity each may have, and whose upload ends when connections
run out.

Knows no bytes and no requests: a capacity is a number of either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from sluice_router.errors import OverloadedError, RouterError

RESERVE: Final = 0.25
"""Share of a capacity that is for tenants below their share."""


class Shares:
    """Amount that each tenant holds of one capacity, in requests or in bytes.

    A share is the capacity divided by the number of tenants that hold some of it, plus one for the
    next tenant. The last quarter of the capacity is for tenants below their share. So such a tenant
    is not refused because of another tenant's requests, until others below their share have filled
    that quarter.
    """

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    def held(self, tenant: str) -> int:
        """Amount that the tenant holds."""
        return self._held.get(tenant, 0)

    def share(self, capacity: float) -> int:
        """Amount that a tenant may always hold, whatever other tenants hold; at least 1."""
        return max(1, int(capacity) // (len(self._held) + 1))

    def largest(self) -> str | None:
        """The tenant that holds most; None if none holds anything."""
        return max(self._held, key=self._held.__getitem__, default=None)

    def limit(self, tenant: str | None, coming: int, capacity: float) -> float:
        """How much may be held in all, including `coming` more of the tenant. For None, without API
        keys, the whole capacity."""
        if tenant is None or self.held(tenant) + coming <= self.share(capacity):
            return capacity
        return capacity * (1 - RESERVE)

    def add(self, tenant: str | None, count: int) -> None:
        """Adds `count` to what the tenant holds; `count` may be negative."""
        if tenant is None:
            return
        held = self.held(tenant) + count
        if held:
            self._held[tenant] = held
        else:
            self._held.pop(tenant, None)


@dataclass(frozen=True, eq=False, slots=True)
class _Upload:
    tenant: str
    end: Callable[[RouterError], None]


class Uploads:
    """Bodies that are on their way, each on a connection of a tenant, and which of them is ended
    when there are too many connections."""

    def __init__(self, max_connections: int) -> None:
        self._max_connections = max_connections
        self._shares = Shares()
        self._uploads: dict[_Upload, None] = {}
        """First the oldest."""

    @contextmanager
    def upload(self, tenant: str, end: Callable[[RouterError], None]) -> Iterator[None]:
        """A body of the tenant is on its way. `end` is called at most once: it must close the
        connection and end the request with that error."""
        upload = _Upload(tenant, end)
        self._uploads[upload] = None
        self._shares.add(tenant, 1)
        try:
            yield
        finally:
            self._remove(upload)

    def end_one(self) -> bool:
        """End the oldest of the tenant that has most; False if that has no more than its share of
        all connections."""
        tenant, limit = self._shares.largest(), self._max_connections
        if tenant is None or self._shares.held(tenant) <= self._shares.share(limit):
            return False
        upload = next(upload for upload in self._uploads if upload.tenant == tenant)
        held = self._shares.held(tenant)
        self._remove(upload)
        upload.end(
            OverloadedError(
                f"the router has {limit} connections (server.maxConnections), and on {held} of them"
                " bodies of yours are on their way; this was the oldest"
            )
        )
        return True

    def _remove(self, upload: _Upload) -> None:
        if upload in self._uploads:
            del self._uploads[upload]
            self._shares.add(upload.tenant, -1)
