"""Requests to the API server over HTTP: connection, credentials, time limits.

The log-in and the description of a connection are Kopf's. Knows nothing of objects: see
`client.py`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
import kopf

from sluice_operator.kube.errors import ApiError, OperatorError, SilentError, UnavailableError
from sluice_operator.kube.kubeconfig import kubeconfig_connection

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
SILENCE_SECONDS: Final = 70.0
"""The API server sends a bookmark every minute: a longer silence is a dead connection."""
BUFFER_BYTES: Final = 2**21
"""Half of the longest line of a watch; the largest object that etcd stores is shorter."""
JSON: Final = "application/json"
APPLY: Final = "application/apply-patch+yaml"
JSON_PATCH: Final = "application/json-patch+json"


@dataclass(frozen=True)
class Request:
    """One request; `path` starts with a slash."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON
    accept: str = JSON

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Response:
    """An answer, whatever its status, with its JSON body."""

    status: int
    body: Any
    retry_after_seconds: float | None = None


class Transport(Protocol):
    """Carries requests."""

    async def send(self, request: Request) -> Response:
        """The server's answer.

        Raises:
            UnavailableError: there was none.
        """
        ...


def log_in(environment: Mapping[str, str] = os.environ) -> kopf.ConnectionInfo:
    """The pod's service account, else the current context of the kubeconfig.

    Raises:
        OperatorError: there is neither, or the kubeconfig cannot be used.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST")
    token = SERVICE_ACCOUNT / "token"
    if host and token.exists():
        host = f"[{host}]" if ":" in host else host
        return kopf.ConnectionInfo(
            server=f"https://{host}:{environment['KUBERNETES_SERVICE_PORT']}",
            ca_path=str(SERVICE_ACCOUNT / "ca.crt"),
            token=token.read_text().strip(),
        )
    connection = kubeconfig_connection(environment)
    if connection is None:
        raise OperatorError("no API server: there is neither a service account nor a kubeconfig")
    return connection


class HttpTransport:
    """A pool of connections to one API server, 0: without a limit. The token is read again when it
    is refused. `silence_seconds`: how long a watch may bring nothing."""

    def __init__(
        self,
        timeout_seconds: float,
        connect: Callable[[], kopf.ConnectionInfo] = log_in,
        most_connections: int = 100,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._connect = connect
        self._silence_seconds = silence_seconds
        self._connection = connect()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                ssl=self._connection.as_ssl_context(), limit=most_connections
            ),
            timeout=aiohttp.ClientTimeout(total=timeout_seconds),
            headers={"User-Agent": "sluice-operator"},
        )

    async def close(self) -> None:
        """Closes every connection."""
        await self._session.close()

    async def send(self, request: Request) -> Response:
        """See `Transport.send`."""
        response = await self._send_once(request)
        if response.status != 401:
            return response
        self._connection = self._connect()
        return await self._send_once(request)

    async def lines(self, request: Request) -> AsyncIterator[bytes]:
        """A watch: the lines of an answer that goes on until either side ends it.

        Raises:
            SilentError: it brought nothing for longer than a bookmark takes.
            UnavailableError: it was broken off.
            ApiError: the server refuses it.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_read=self._silence_seconds)
        url = self._connection.server.rstrip("/") + request.path
        headers = {**self._connection.as_http_headers(), "Accept": request.accept}
        try:
            async with self._session.get(
                url,
                params=request.query,
                headers=headers,
                timeout=timeout,
                read_bufsize=BUFFER_BYTES,
            ) as response:
                if response.status != 200:
                    raise ApiError(str(request), response.status, response.reason or "", "")
                async for line in response.content:
                    yield line
        except aiohttp.SocketTimeoutError as error:
            silent = f"nothing for {self._silence_seconds:g} seconds"
            raise SilentError(str(request), silent) from error
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise UnavailableError(str(request), str(error) or type(error).__name__) from error

    async def _send_once(self, request: Request) -> Response:
        headers = {
            **self._connection.as_http_headers(),
            "Accept": request.accept,
            "Content-Type": request.content_type,
        }
        try:
            async with self._session.request(
                request.method,
                self._connection.server.rstrip("/") + request.path,
                params=request.query,
                json=request.body,
                headers=headers,
            ) as response:
                body = await _body(response)
                return Response(response.status, body, _retry_after(response.headers))
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise UnavailableError(str(request), str(error) or type(error).__name__) from error


async def _body(response: aiohttp.ClientResponse) -> Any:
    """None where an error has no JSON as its body, as a 404 of a kind that is being installed."""
    try:
        return await response.json(content_type=None)
    except ValueError:
        if response.status < 400:
            raise
        return None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    text = headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None
