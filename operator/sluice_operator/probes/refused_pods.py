"""Why a Job has no pod: the API server's answer to a dry run of that pod.

The Job's controller reports the refusal only in events. A right to read events would cover those of
all workloads of a namespace. A right to create pods adds little, because the operator creates Jobs
anyway.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from sluice_operator.clock import Clock
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.errors import ApiError, RequestError
from sluice_operator.kube.kinds import POD, Manifest, controller_uid, is_being_deleted
from sluice_operator.log import fields

REFUSED_SECONDS: Final = 30.0
"""Seconds of refusals after which a person is needed. A shorter refusal may be a quota about to be
raised, or an account that is not in a cache yet."""
EVERY_SECONDS: Final = 30.0
MAX_KEPT: Final = 1000
REFUSALS: Final = frozenset({400, 403, 422})
"""Statuses of an admission's refusal."""
MISSING_RIGHT: Final = 'cannot create resource "pods"'
NOT_OF_THE_POD: Final = (MISSING_RIGHT, "being terminated", "support dry run")
"""Parts of refusals that only the operator gets: it lacks a right, the namespace is being deleted,
or a webhook does not support dry runs."""
WEBHOOK: Final = "failed calling webhook"
"""Part of the answer where a webhook that has to agree does not answer."""

logger = logging.getLogger(__name__)


@dataclass
class _Wait:
    """A Job without a pod."""

    since: float
    asked_at: float | None = None
    refusal: str = ""

    @property
    def next_at(self) -> float:
        return (
            self.since + REFUSED_SECONDS if self.asked_at is None else self.asked_at + EVERY_SECONDS
        )


class RefusedPods:
    """The last answer about each Job without a pod. Each is asked once it has waited for
    `REFUSED_SECONDS`, by the operator's own clock, and again every `EVERY_SECONDS`."""

    def __init__(self, client: ApiClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._waits: OrderedDict[str, _Wait] = OrderedDict()
        self._is_warned = False

    async def refusals(self, jobs: Iterable[Manifest], pods: Iterable[Manifest]) -> dict[str, str]:
        """Why pods of `jobs` are refused, by the Job's uid. `pods`: running or waiting pods that
        may be theirs."""
        having = set(map(controller_uid, pods))
        refusals: dict[str, str] = {}
        for job in jobs:
            uid = str(job["metadata"]["uid"])
            if uid in having or not _makes_pods(job):
                self._waits.pop(uid, None)
            elif refusal := await self._refusal(uid, job):
                refusals[uid] = refusal
        return refusals

    def again_seconds(self, jobs: Iterable[Manifest]) -> float | None:
        """Seconds until the next request about one of `jobs` that wait; None: none waits."""
        waits = (self._waits.get(str(job["metadata"]["uid"])) for job in jobs)
        now = self._clock.monotonic()
        return min((max(0.0, wait.next_at - now) for wait in waits if wait), default=None)

    async def _refusal(self, uid: str, job: Manifest) -> str:
        now = self._clock.monotonic()
        wait = self._waits.setdefault(uid, _Wait(now))
        if len(self._waits) > MAX_KEPT:
            self._waits.popitem(last=False)
        if now >= wait.next_at:
            wait.refusal, wait.asked_at = await self._ask(job), now
        return wait.refusal

    async def _ask(self, job: Manifest) -> str:
        """The refusal's text; empty where the pod would be made, or the answer is unknown."""
        try:
            await self._client.would_create(POD, _pod(job))
        except ApiError as error:
            if error.status in REFUSALS and not any(p in error.message for p in NOT_OF_THE_POD):
                return error.message
            if MISSING_RIGHT in error.message and not self._is_warned:
                self._is_warned = True
                logger.warning("why a Job has no pod is not known", extra=fields(error=error))
        except RequestError as error:
            return str(error) if WEBHOOK in str(error) else ""
        return ""


def _makes_pods(job: Manifest) -> bool:
    """Whether the Job's controller should make a pod of it."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    ended = any(c["type"] in ("Complete", "Failed") and c["status"] == "True" for c in conditions)
    return not (ended or job["spec"].get("suspend") or is_being_deleted(job))


def _pod(job: Manifest) -> Manifest:
    """The pod as the Job's controller would make it. Its name is fixed, because refusals contain it
    and a status shows them."""
    metadata, template = job["metadata"], job["spec"]["template"]
    owner = {
        "apiVersion": job["apiVersion"],
        "kind": job["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    marks = {
        key: value
        for key, value in (template.get("metadata") or {}).items()
        if key in ("labels", "annotations")
    }
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": marks
        | {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "ownerReferences": [owner],
        },
        "spec": template["spec"],
    }
