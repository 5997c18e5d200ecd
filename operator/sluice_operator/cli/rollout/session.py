"""The API server as the user of a kubeconfig sees it: one InferenceService and what is below it.

Decides nothing. Edits are refused where somebody else has edited the spec meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Final

from sluice_contract.cluster import labels

from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.connection import Connection, Request
from sluice_operator.kube.errors import OperatorError, UnavailableError
from sluice_operator.kube.kinds import (
    CONTROLLER_REVISION,
    ENGINE_POOL,
    INFERENCE_SERVICE,
    Manifest,
)
from sluice_operator.service.revisions.revision import DECISION

TIMEOUT_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 1.0
"""Delay before a watch that ended is restarted."""
MANAGER: Final = "sluice"
"""Field manager of what a person edits with this command."""


class MissingServiceError(OperatorError):
    """There is no such InferenceService, or no longer."""


class Session:
    """One InferenceService; every method raises `RequestError` where the API server refuses."""

    def __init__(self, connection: Connection, namespace: str, name: str) -> None:
        self._connection = connection
        self._client = ApiClient(connection, lambda verb, plural: None)
        self.namespace = namespace
        self.name = name

    async def service(self) -> Manifest:
        """The InferenceService.

        Raises:
            MissingServiceError: there is none.
        """
        service = await self._client.get(INFERENCE_SERVICE, self.namespace, self.name)
        if service is None:
            raise self._missing()
        return service

    async def pools(self) -> tuple[Manifest, ...]:
        """EnginePools of the service."""
        return await self._client.list_objects(ENGINE_POOL, self.namespace, self._selector)

    async def revisions(self) -> tuple[Manifest, ...]:
        """ControllerRevisions of the service."""
        return await self._client.list_objects(CONTROLLER_REVISION, self.namespace, self._selector)

    async def edit(self, live: Manifest, spec: Manifest) -> None:
        """Makes `spec` the spec of `live`, if that still is as it was read."""
        same = {"op": "test", "path": "/spec", "value": live["spec"]}
        change = {"op": "replace", "path": "/spec", "value": spec}
        await self._client.patch(INFERENCE_SERVICE, live, [same, change], MANAGER)

    async def decide(self, live: Manifest, decision: str) -> None:
        """Notes a decision about the canary of a ControllerRevision, if that still is as it was
        read."""
        version = live["metadata"]["resourceVersion"]
        same = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
        place = f"/metadata/annotations/{DECISION.replace('/', '~1')}"
        change = {"op": "add", "path": place, "value": decision}
        await self._client.patch(CONTROLLER_REVISION, live, [same, change], MANAGER)

    async def states(self) -> AsyncGenerator[Manifest, None]:
        """The InferenceService as it is, and again with each change, without an end."""
        while True:
            service = await self.service()
            yield service
            try:
                async for line in self._connection.lines(self._watch(service)):
                    event = json.loads(line)
                    if event["type"] == "DELETED":
                        raise self._missing()
                    if event["type"] not in ("ADDED", "MODIFIED"):
                        break
                    yield event["object"]
            except UnavailableError:
                pass
            await asyncio.sleep(AGAIN_SECONDS)

    @property
    def _selector(self) -> str:
        return f"{labels.SERVICE}={self.name}"

    def _watch(self, service: Manifest) -> Request:
        query = {
            "watch": "true",
            "fieldSelector": f"metadata.name={self.name}",
            "resourceVersion": service["metadata"]["resourceVersion"],
        }
        return Request("GET", path(INFERENCE_SERVICE, self.namespace), query)

    def _missing(self) -> MissingServiceError:
        kind = INFERENCE_SERVICE.kind
        return MissingServiceError(f"{kind} {self.name} is not in namespace {self.namespace}")


@asynccontextmanager
async def session(namespace: str | None, name: str) -> AsyncIterator[Session]:
    """A session with the cluster of the kubeconfig's context; `namespace` None: the context's."""
    async with aclosing(Connection(TIMEOUT_SECONDS)) as connection:
        yield Session(connection, namespace or await connection.namespace(), name)
