"""Progress of downloads: pods are asked, each at most every few seconds.

Within that time a repeated question gets the same answer. So showing progress in a status does not
cause more requests. A pod that does not answer has no progress.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from pydantic import ValidationError
from sluice_contract.cluster import ports
from sluice_contract.wire.fetch_progress import FetchProgress

from sluice_operator.clock import Clock
from sluice_operator.kube.kinds import Manifest
from sluice_operator.probes.accelerators import Fetch

EVERY_SECONDS: Final = 5.0
MAX_KEPT: Final = 1000


class DownloadProgress:
    """The last answer of each pod."""

    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._last: OrderedDict[str, tuple[float, FetchProgress | None]] = OrderedDict()

    async def first_of(self, pods: Iterable[Manifest]) -> FetchProgress | None:
        """The progress of the first of `pods` that runs and answers."""
        for pod in filter(is_running, pods):
            if (progress := await self._progress_of(pod)) is not None:
                return progress
        return None

    async def _progress_of(self, pod: Manifest) -> FetchProgress | None:
        uid, now = str(pod["metadata"]["uid"]), self._clock.monotonic()
        asked_at, progress = self._last.get(uid, (None, None))
        if asked_at is not None and now < asked_at + EVERY_SECONDS:
            return progress
        progress = await self._ask(pod)
        self._last[uid] = (now, progress)
        self._last.move_to_end(uid)
        if len(self._last) > MAX_KEPT:
            self._last.popitem(last=False)
        return progress

    async def _ask(self, pod: Manifest) -> FetchProgress | None:
        address = pod["status"].get("podIP") or ""
        host = f"[{address}]" if ":" in address else address
        try:
            body = await self._fetch(f"http://{host}:{ports.FETCH_PROGRESS}/progress")
            return FetchProgress.model_validate_json(body, extra="ignore")
        except (OSError, TimeoutError, ValidationError, ValueError):
            return None


def is_running(pod: Manifest) -> bool:
    """Whether the pod's container runs, or is about to."""
    return (pod.get("status") or {}).get("phase") == "Running"
