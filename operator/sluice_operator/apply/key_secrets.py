"""Creates Secrets with a random key, and never reads one.

A create request shows whether the Secret exists: "already exists" is the normal answer. Each Secret
is tried once for every state in which pods may wait for it.
"""

from __future__ import annotations

import base64
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from sluice_operator.apply.plan import KeySecret
from sluice_operator.kube.errors import ConflictError
from sluice_operator.kube.kinds import SECRET, Kind, Manifest
from sluice_operator.log import fields

KEY_BYTES: Final = 32
REMEMBERED: Final = 100_000
EXISTS: Final = "AlreadyExists"

logger = logging.getLogger(__name__)

RandomBytes = Callable[[int], bytes]


class CreatingClient(Protocol):
    """The request that creating needs."""

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest: ...


class KeySecrets:
    """Creates missing Secrets. Remembers only what it has tried."""

    def __init__(self, client: CreatingClient, random_bytes: RandomBytes) -> None:
        self._client = client
        self._random_bytes = random_bytes
        self._tried: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def create(self, secret: KeySecret) -> None:
        """Creates it, if it is not there.

        Raises:
            RequestError: it could not be created, for another reason.
        """
        metadata = secret.manifest["metadata"]
        key = (metadata["namespace"], metadata["name"])
        if self._tried.get(key, "") == secret.waiting:
            return
        self._tried.pop(key, None)
        if not secret.waiting:
            return
        await self._create(secret)
        self._tried[key] = secret.waiting
        if len(self._tried) > REMEMBERED:
            self._tried.popitem(last=False)

    async def _create(self, secret: KeySecret) -> None:
        drawn = base64.b64encode(self._random_bytes(KEY_BYTES)).decode()
        try:
            await self._client.create(SECRET, secret.manifest | {"stringData": {secret.key: drawn}})
        except ConflictError as error:
            if error.reason != EXISTS:
                raise
        else:
            name = secret.manifest["metadata"]["name"]
            logger.info("secret created", extra=fields(name=name))
