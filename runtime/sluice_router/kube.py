"""Requests to list and to watch one kind of namespaced object.

Reads credentials for every call, because mounted tokens and CAs rotate. The caller decides what to
do about an error.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from aiohttp.http_exceptions import HttpProcessingError
from sluice_contract.base import ConfigError
from sluice_contract.cluster.list_watch import SILENCE_SECONDS, RefusedError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LIST_SECONDS: Final = 30.0
_LONGEST_EVENT_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class Credentials:
    """Authentication of one call, and how the API server is verified."""

    headers: Mapping[str, str]
    tls: ssl.SSLContext | bool = True


@dataclass(frozen=True)
class Cluster:
    """An API server, and how to authenticate to it now."""

    url: str
    credentials: Callable[[], Credentials]


def in_cluster(environ: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> Cluster:
    """The cluster that this pod runs in, by its service account.

    Raises:
        ConfigError: the process does not run in a pod with a token.
    """
    host = environ.get("KUBERNETES_SERVICE_HOST", "")
    port = environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (account / "token").is_file():
        where = f"a pod with a service account token in {account}; or use engines"
        raise ConfigError("discovery", host or None, where)

    def credentials() -> Credentials:
        token = (account / "token").read_text().strip()
        tls = ssl.create_default_context(cafile=str(account / "ca.crt"))
        return Credentials({"Authorization": f"Bearer {token}"}, tls)

    return Cluster(
        f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}", credentials
    )


class KubeClient:
    """List and watch of the objects under one path that match one label selector."""

    def __init__(
        self, session: aiohttp.ClientSession, cluster: Cluster, path: str, selector: str
    ) -> None:
        self._session = session
        self._cluster = cluster
        self._path = path
        self._selector = selector

    async def list(self) -> tuple[list[dict[str, Any]], str]:
        """All objects as of now, and their version.

        Raises:
            RefusedError: the API server refused; aiohttp.ClientError, OSError: it is away.
        """
        timeout = aiohttp.ClientTimeout(total=LIST_SECONDS)
        async with self._get({}, timeout) as response:
            await _check(response)
            answer = msgspec.json.decode(await response.read())
        return answer.get("items") or [], answer["metadata"]["resourceVersion"]

    async def lines(self, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """The lines of a watch, until the API server ends it. Raises as `list`."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=SILENCE_SECONDS)
        async with self._get(query, timeout) as response:
            await _check(response)
            try:
                while line := await response.content.readline():
                    yield line
            except (ValueError, HttpProcessingError) as error:  # e.g. a line that is too long
                raise aiohttp.ClientPayloadError(str(error)) from error
            finally:
                _drop(response)

    def _get(
        self, query: Mapping[str, str], timeout: aiohttp.ClientTimeout
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        credentials = self._cluster.credentials()
        return self._session.get(
            self._cluster.url + self._path,
            params={"labelSelector": self._selector, **query},
            headers={**credentials.headers, "Accept": "application/json"},
            ssl=credentials.tls,
            timeout=timeout,
            read_bufsize=_LONGEST_EVENT_BYTES,
        )


def _drop(response: aiohttp.ClientResponse) -> None:
    """Close a watch that has not ended, without waiting for a peer that may be gone."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == HTTPStatus.OK:
        return
    body = await response.read()
    try:
        status = msgspec.json.decode(body, type=dict)
    except msgspec.DecodeError:
        status = {}
    text = f"{response.status} {status.get('reason', '')}: {status.get('message', '')}"
    retry_after = response.headers.get("Retry-After", "")
    seconds = float(retry_after) if retry_after.isdecimal() else None
    raise RefusedError(response.status, text, seconds)
