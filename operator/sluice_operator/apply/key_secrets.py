"""Creates Secrets with a random key, and never reads one.

A create request shows whether the Secret exists. It is tried once for every state in which pods may
wait for it; where pods have started with it, or it was just made, only once others have been
missing for a while. One that may have lost its owner is taken over by a patch that the API server
carries out only where the operator's labels are and no owner is.
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
"""Time for which pods are missing before a Secret that should exist is tried: the kubelet, too,
asks for one again only after a while."""
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
    """The last try since pods are missing."""

    waiting: str
    """Hash of what waited for the Secret at that try; empty: it was not tried yet."""
    at: float
    """Monotonic time of that try in seconds; before any try, of the first look."""
    is_made: bool = False


class KeySecrets:
    """Creates missing Secrets. Remembers only what it has tried."""

    def __init__(self, client: CreatingClient, clock: Clock, random_bytes: RandomBytes) -> None:
        self._client = client
        self._clock = clock
        self._random_bytes = random_bytes
        self._tried: OrderedDict[tuple[str, ...], _Tried] = OrderedDict()

    async def create(self, secret: KeySecret) -> float | None:
        """Creates it, if it is not there. Returns after how many seconds to ask again, where it
        most likely is.

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
            # One that has an owner, or another's labels, is as it should be. Pods do without this.
            if error.status != UNPROCESSABLE:
                place = fields(namespace=namespace, name=name, error=error)
                logger.warning("secret not taken over", extra=place)
        else:
            logger.info("secret taken over", extra=fields(name=name))


def takeover_patch(manifest: Manifest) -> JsonPatch:
    """Gives the object its owners if it has none, and the labels of `manifest`."""
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
