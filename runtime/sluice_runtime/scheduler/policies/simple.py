"""Orders that look at one field of a request."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

from sluice_runtime.scheduler.policies.context import PolicyContext
from sluice_runtime.scheduler.request import Request


def first_come_first_served(
    waiting: Sequence[Request], context: PolicyContext
) -> Iterable[Request]:
    """Good as a default: nobody is passed over, and it costs nothing."""
    del context
    return waiting


def shuffled(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good for comparing against: an order that knows nothing, and is the same for equal seeds."""
    seed = context.seed & 0xFFFFFFFF
    return sorted(waiting, key=lambda r: (zlib.crc32(r.request_id.encode(), seed), r.request_id))


def highest_priority_first(waiting: Sequence[Request], context: PolicyContext) -> Iterable[Request]:
    """Good where requests are not equally urgent: the highest `priority` first, and among equals
    the first that came."""
    del context
    return sorted(waiting, key=lambda request: -request.priority)
