"""Creates Secrets with a random key, and never reads one.

The answer to a create request shows whether the Secret exists. The request is sent once for every
state in which pods may wait for the Secret. If pods have started with the Secret, or it was just
made, the request is sent only once other pods have been missing for a while.

A Secret that may have lost its owner is patched: it gets its owner back. The API server carries out
the patch only if the Secret has the operator's labels and no owner.
"""

from __future__ import annotations

import base64
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from sluice_contract.cluster import labels

from sluice_operator.apply.plan import KeySecret
from sluice_operator.apply.ssa_list_conflicts import JsonPatch
from sluice_operator.clock import Clock
from sluice_operator.kube.errors import UNPROCESSABLE, ApiError, ConflictError
from sluice_operator.kube.kinds import SECRET, Kind, Manifest
from sluice_operator.log import fields

KEY_BYTES: Final = 32
REMEMBERED: Final = 100_000
MISSING_SECONDS: Final = 10.0
"""Seconds for which pods are missing before a create request is sent for a Secret that should
exist: the kubelet, too, retries a missing Secret only after a while."""
EXISTS: Final = "AlreadyExists"

logger = logging.getLogger(__name__)

RandomBytes = Callable[[int], bytes]


class CreatingClient(Protocol):
    """The requests that creating and taking over need."""

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest: ...

    async def patch_unread(
        self, kind: Kind, namespace: str, name: str, operations: JsonPatch
    ) -> None: ...


class _Tried(NamedTuple):
    """The last create request since pods have been missing."""

    waiting: str
    """Hash of what waited for the Secret at that request; empty: no request was sent yet."""
    at: float
    """Monotonic seconds of that request; before any request, of the first look."""
    is_made: bool = False


class KeySecrets:
    """Creates missing Secrets. Remembers only its create requests."""

    def __init__(self, client: CreatingClient, clock: Clock, random_bytes: RandomBytes) -> None:
        self._client = client
        self._clock = clock
        self._random_bytes = random_bytes
        self._tried: OrderedDict[tuple[str, ...], _Tried] = OrderedDict()

    async def create(self, secret: KeySecret) -> float | None:
        """Creates the Secret if it is missing. Returns the seconds after which to ask again, if it
        most likely exists; None: no need to ask.

        Raises:
            RequestError: it could not be created, for another reason, or the API server does not
                answer.
        """
        metadata, now = secret.manifest["metadata"], self._clock.monotonic()
        key = (metadata["namespace"], metadata["name"], str(metadata.get("ownerReferences")))
        last = self._tried.pop(key, _Tried("", now))
        if not secret.waiting:
            return None
        self._tried[key] = last
        if len(self._tried) > REMEMBERED:
            self._tried.popitem(last=False)
        if last.waiting == secret.waiting:
            return None
        is_known = (secret.is_used or last.is_made) and not secret.is_lost
        if is_known and (wait_seconds := last.at + MISSING_SECONDS - now) > 0:
            return wait_seconds
        is_made = await self._create(secret)
        self._tried[key] = _Tried(secret.waiting, now, is_made)
        return None

    async def _create(self, secret: KeySecret) -> bool:
        """Whether it was created; False where it existed already."""
        drawn = base64.b64encode(self._random_bytes(KEY_BYTES)).decode()
        try:
            await self._client.create(SECRET, secret.manifest | {"stringData": {secret.key: drawn}})
        except ConflictError as error:
            if error.reason != EXISTS:
                raise
            if secret.is_lost:
                await self._take_over(secret.manifest)
            return False
        name = secret.manifest["metadata"]["name"]
        logger.info("secret created", extra=fields(name=name))
        return True

    async def _take_over(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        try:
            await self._client.patch_unread(SECRET, namespace, name, takeover_patch(manifest))
        except ApiError as error:
            # The Secret has an owner, or labels of somebody else: both are as they should be. Pods
            # start without the patch.
            if error.status != UNPROCESSABLE:
                place = fields(namespace=namespace, name=name, error=error)
                logger.warning("secret not taken over", extra=place)
        else:
            logger.info("secret taken over", extra=fields(name=name))


def takeover_patch(manifest: Manifest) -> JsonPatch:
    """A JSON patch that gives an object the owners of `manifest`, if it has none and has its
    labels."""
    metadata = manifest["metadata"]
    marks = {key: metadata["labels"][key] for key in (labels.MANAGED_BY, labels.SERVICE)}
    return [
        *(
            {"op": "test", "path": f"/metadata/labels/{key.replace('/', '~1')}", "value": value}
            for key, value in marks.items()
        ),
        {"op": "test", "path": "/metadata/ownerReferences", "value": None},
        {"op": "add", "path": "/metadata/ownerReferences", "value": metadata["ownerReferences"]},
    ]
