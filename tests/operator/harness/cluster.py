"""A person's hands on the API server: make, edit, delete, and wait for what should follow.

Waiting is watching: nothing here polls or sleeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import client
from sluice_operator.conditions.conditions import ABNORMAL, find
from sluice_operator.kube.client import ApiClient, path
from sluice_operator.kube.connection import JSON_PATCH, Connection, LogIn, Request, Response, log_in
from sluice_operator.kube.kinds import Kind, Manifest

from tests.patience import PATIENCE_SECONDS

MERGE_PATCH = "application/merge-patch+json"

NAMESPACE = Kind("v1", "Namespace", "namespaces")
State = dict[str, Manifest]
"""Objects of one kind in one namespace, by name."""


def by_kubeconfig(kubeconfig: Path) -> Callable[[], Awaitable[LogIn]]:
    """Logs in as its current context says."""
    return partial(log_in, {"KUBECONFIG": str(kubeconfig)})


def plain_log_in(server: str) -> Callable[[], Awaitable[LogIn]]:
    """A server that asks for no credentials."""

    async def logged_in() -> LogIn:
        return LogIn(client.Configuration(host=server))

    return logged_in


async def unlimited(kubeconfig: Path) -> tuple[str, aiohttp.ClientSession]:
    """The API server's URL, and a session with the kubeconfig's certificates and no time limit."""
    configuration = (await by_kubeconfig(kubeconfig)()).configuration
    tls = client.ApiClient(configuration).rest_client.ssl_context
    return configuration.host, aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=2**21,
    )


class Cluster:
    """An API server as an administrator uses it."""

    def __init__(self, kubeconfig: Path) -> None:
        self.transport = Connection(30.0, by_kubeconfig(kubeconfig))
        self._kubeconfig = kubeconfig
        self._watches: tuple[str, aiohttp.ClientSession] | None = None

    async def close(self) -> None:
        await self.transport.aclose()
        if self._watches is not None:
            await self._watches[1].close()

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        namespace = manifest["metadata"].get("namespace")
        return await self.send(Request("POST", path(kind, namespace), body=manifest))

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest:
        return await self.send(Request("GET", path(kind, namespace, name)))

    async def list(self, kind: Kind, namespace: str, selector: str = "") -> State:
        query = {"labelSelector": selector} if selector else {}
        listing = await self.send(Request("GET", path(kind, namespace), query))
        return {item["metadata"]["name"]: item for item in listing["items"]}

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, body: Any, subresource: str = ""
    ) -> Manifest:
        """A JSON merge patch (a map) or a JSON patch (a list), as the manager `person`."""
        content_type = JSON_PATCH if isinstance(body, list) else MERGE_PATCH
        target = path(kind, namespace, name, subresource)
        query = {"fieldManager": "person"}
        return await self.send(Request("PATCH", target, query, body, content_type))

    async def delete(self, kind: Kind, namespace: str | None, name: str) -> None:
        body = {"propagationPolicy": "Background"}
        await self.send(Request("DELETE", path(kind, namespace, name), body=body))

    async def send(self, request: Request) -> Manifest:
        """The answer's body; an error answer fails the test."""
        response = await self.try_send(request)
        assert response.status < 300, f"{request}: {response.status} {response.body}"
        assert isinstance(response.body, dict)
        return response.body

    async def try_send(self, request: Request) -> Response:
        return await self.transport.send(request)

    async def until(
        self,
        kind: Kind,
        namespace: str | None,
        condition: Callable[[State], Any],
        timeout_seconds: float = PATIENCE_SECONDS,
    ) -> State:
        """The state of the namespace, or of the cluster, as soon as `condition` holds for it."""
        state: State = {}
        try:
            async with asyncio.timeout(timeout_seconds):
                async with contextlib.aclosing(self._states(kind, namespace)) as states:
                    async for state in states:
                        if condition(state):
                            return state
        except TimeoutError:
            found = json.dumps({name: _brief(item) for name, item in state.items()}, indent=1)
            raise AssertionError(f"never happened to {kind.plural}: now {found}") from None
        raise AssertionError("the watch ended")

    async def until_served(self, kind: Kind, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        """Returns once the API server has taken up a new kind: no event says so."""
        client = ApiClient(self.transport, lambda verb, plural: None)
        async with asyncio.timeout(timeout_seconds):
            while True:
                if await client.serves(kind):
                    listing = await self.try_send(Request("GET", path(kind, None)))
                    if listing.status == 200:
                        return
                await asyncio.sleep(0.05)

    async def _states(self, kind: Kind, namespace: str | None) -> AsyncGenerator[State, None]:
        listing = await self.send(Request("GET", path(kind, namespace)))
        state = {item["metadata"]["name"]: item for item in listing["items"]}
        yield state
        query = {"watch": "1", "resourceVersion": listing["metadata"]["resourceVersion"]}
        if self._watches is None:
            self._watches = await unlimited(self._kubeconfig)
        server, session = self._watches
        url = server + path(kind, namespace)
        async with session.get(url, params=query) as response, aborted(response):
            async for line in response.content:
                event = json.loads(line)
                name = event["object"]["metadata"]["name"]
                if event["type"] == "DELETED":
                    state.pop(name, None)
                else:
                    state[name] = event["object"]
                yield state


@contextlib.asynccontextmanager
async def aborted(response: aiohttp.ClientResponse) -> AsyncGenerator[None, None]:
    """Ends a watch without taking leave of the server, whose answer might come after the test."""
    try:
        yield
    finally:
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()


def condition(item: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A condition of an object's status, with its text; empty when it has none of that type. One
    that kstatus takes for False where it is missing is False."""
    status = item.get("status") or {}
    absent = {"status": "False"} if kind in ABNORMAL and status.get("conditions") else {}
    return find(status, kind) or absent


def _brief(item: Manifest) -> Manifest:
    metadata = {k: v for k, v in item["metadata"].items() if k != "managedFields"}
    return {**item, "metadata": metadata}
