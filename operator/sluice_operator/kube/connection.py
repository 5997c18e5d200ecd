"""Requests to the API server through the `kubernetes` client, which logs in and carries them.

Classifies answers and failures; `client.py` builds the requests.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp
import msgspec
import yaml
from aiohttp import TraceRequestChunkSentParams, TraceRequestHeadersSentParams
from aiohttp.helpers import get_env_proxy_for_url
from aiohttp.http_exceptions import HttpProcessingError
from kubernetes.aio import client, config
from sluice_contract.cluster.list_watch import SILENCE_SECONDS
from yarl import URL

from sluice_operator.kube.errors import (
    UNAUTHORIZED,
    ApiError,
    OperatorError,
    UnavailableError,
)

JSON: Final = "application/json"
TEXT: Final = "text/plain"
"""`accept` of a request whose answer is no JSON, as a pod's may be through the API server."""
APPLY: Final = "application/apply-patch+yaml"
JSON_PATCH: Final = "application/json-patch+json"

_Sending = TraceRequestHeadersSentParams | TraceRequestChunkSentParams


@dataclass(frozen=True)
class Request:
    """One request; `path` starts with a slash."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    content_type: str = JSON
    accept: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Other headers. They may hold credentials, so no message shows them."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Response:
    """An answer, whatever its status, with its JSON body, or the text that was asked for."""

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


WriteSeconds = Callable[[], float]
"""How long a write that is sent now may take. Raises where nothing may be written."""


def _unlimited() -> float:
    return math.inf


class Streams(Protocol):
    """Requests with streamed responses."""

    def lines(self, request: Request) -> AsyncGenerator[bytes, None]: ...


@dataclass(frozen=True)
class LogIn:
    """How an API server is reached, with which credentials."""

    configuration: client.Configuration
    namespace: str = "default"
    """Namespace of the kubeconfig's context."""


async def log_in(environment: Mapping[str, str] = os.environ) -> LogIn:
    """The pod's service account, else the current context of the kubeconfig.

    Raises:
        OperatorError: there is neither, or the kubeconfig cannot be used.
    """
    configuration = client.Configuration()
    try:
        config.load_incluster_config(configuration)
    except config.ConfigException:
        logged_in = await _by_kubeconfig(configuration, environment)
    else:
        logged_in = LogIn(configuration)
    configuration.proxy = configuration.proxy or _environment_proxy(configuration.host)
    return logged_in


def _environment_proxy(server: str) -> str | None:
    """The proxy for a server by `HTTPS_PROXY` and `NO_PROXY`, with its credentials. Looked up once:
    sessions that trust the environment read it, and ~/.netrc, in a thread for every request."""
    try:
        proxy, credentials = get_env_proxy_for_url(URL(server))
    except LookupError:
        return None
    if credentials is not None:
        proxy = proxy.with_user(credentials.login).with_password(credentials.password)
    return str(proxy)


async def _by_kubeconfig(
    configuration: client.Configuration, environment: Mapping[str, str]
) -> LogIn:
    places = environment.get("KUBECONFIG") or "~/.kube/config"
    if not _exists(places):
        raise OperatorError(
            f"no API server: neither a service account nor a kubeconfig {places}; "
            "KUBECONFIG has the path of one"
        )
    try:
        loader = await config.load_kube_config(
            places, client_configuration=configuration, persist_config=False
        )
        namespace = loader.current_context["context"].get("namespace", "default")
    except (config.ConfigException, yaml.YAMLError, OSError, ValueError, LookupError) as error:
        raise OperatorError(f"kubeconfig {places}: {_cause(error)}") from None
    except (TypeError, AttributeError) as error:
        raise OperatorError(f"kubeconfig {places}: not a kubeconfig ({error})") from None
    has_credentials = configuration.api_key or configuration.cert_file
    if configuration.host.startswith("https:") and not has_credentials:
        why = "its user has no credentials, or the command for them failed"
        raise OperatorError(f"kubeconfig {places}: {why}")
    return LogIn(configuration, namespace)


def _exists(places: str) -> bool:
    """Whether one of the files exists. `places`: paths, separated as in PATH."""
    return any(Path(place).expanduser().exists() for place in places.split(os.pathsep) if place)


def _cause(error: Exception) -> str:
    """The cause of a kubeconfig error, without parts that may hold a token (the line and its
    content)."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"{type(error).__name__}: {error.problem} in line {error.problem_mark.line + 1}"
    return f"{type(error).__name__}: {str(error).partition('{')[0]}"


class Connection:
    """A pool of connections to one API server. It logs in with the first request, and again where
    the credentials or the server's certificate are refused. `silence_seconds`: how long a watch may
    bring nothing. `write_seconds` may be set later, by the holder of the Lease."""

    def __init__(
        self,
        timeout_seconds: float,
        log_in: Callable[[], Awaitable[LogIn]] = log_in,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self.write_seconds: WriteSeconds = _unlimited
        self._timeout = _within(timeout_seconds)
        self._log_in = log_in
        self._silence_seconds = silence_seconds
        self._client: client.ApiClient | None = None
        self._namespace = ""
        self._lock = asyncio.Lock()

    async def aclose(self) -> None:
        """Closes every connection."""
        if self._client is not None:
            await self._client.close()

    async def namespace(self) -> str:
        """The namespace of a person who names none: the one of the log-in."""
        await self._logged_in()
        return self._namespace

    async def server(self) -> str:
        """The URL of the API server."""
        return str((await self._logged_in()).configuration.host)

    async def send(self, request: Request) -> Response:
        """See `Transport.send`."""
        async with self._answer(request, self._timeout) as answer:
            text = await answer.read()
            is_text = request.accept == TEXT and answer.status == 200
            body = text.decode(errors="replace") if is_text else _body(answer, text)
            return Response(answer.status, body, _retry_after(answer.headers))

    async def lines(self, request: Request) -> AsyncGenerator[bytes, None]:
        """A watch: the lines of a response that continues until either side ends it.

        Raises:
            UnavailableError: it was broken off, brought nothing for too long, or is to be asked
                for later.
            ApiError: the server refuses it.
        """
        async with self.stream(request) as answer:
            if answer.status == 429 or answer.status >= 500:
                cause = f"{answer.status} {answer.reason}"
                raise UnavailableError(str(request), cause, _retry_after(answer.headers))
            if answer.status != 200:
                raise ApiError(str(request), answer.status, answer.reason or "", "")
            async for line in answer.content:
                yield line

    def stream(self, request: Request) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """The answer's head; its body can be read as it arrives, for as long as it takes.

        Raises:
            UnavailableError: there was no answer, it broke off, or brought nothing for too long.
        """
        limits = aiohttp.ClientTimeout(total=None, sock_read=self._silence_seconds)
        return self._answer(request, limits)

    @asynccontextmanager
    async def _answer(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The answer's head; asked a second time where another log-in may help."""
        try:
            used = await self._logged_in()
            key = used.configuration.api_key
            try:
                response = await self._ask(used, request, limits)
                is_refused = await _refuses_log_in(response)
            except aiohttp.ClientSSLError:
                is_refused = True
            if is_refused:
                await self._log_in_again(used, key, request)
                response = await self._ask(used, request, limits)
            async with response:
                yield response
        except aiohttp.SocketTimeoutError as error:
            silent = f"nothing for {self._silence_seconds:g} seconds"
            raise UnavailableError(str(request), silent) from error
        except (
            TimeoutError,
            aiohttp.ClientError,
            HttpProcessingError,
            OSError,
            ValueError,
        ) as error:
            raise UnavailableError(str(request), str(error) or type(error).__name__) from error

    async def _logged_in(self) -> client.ApiClient:
        async with self._lock:
            if self._client is None:
                logged_in = await self._log_in()
                self._namespace = logged_in.namespace
                logged_in.configuration.client_session_kwargs = {
                    "trust_env": False,
                    "trace_configs": [self._trace()],
                }
                self._client = client.ApiClient(logged_in.configuration)
                self._client.user_agent = "sluice-operator"
            return self._client

    async def _log_in_again(
        self, used: client.ApiClient, refused_key: dict[str, str], request: Request
    ) -> None:
        """Takes over credentials and certificates, unless another request has done so. Connections
        that are open stay so."""
        async with self._lock:
            if used.configuration.api_key is not refused_key:
                return
            try:
                configuration = (await self._log_in()).configuration
            except OperatorError as error:
                raise UnavailableError(str(request), f"log-in: {error}") from error
            used.configuration.api_key = configuration.api_key
            used.configuration.refresh_api_key_hook = configuration.refresh_api_key_hook
            if configuration.ssl_ca_cert:
                used.rest_client.ssl_context.load_verify_locations(configuration.ssl_ca_cert)
            if configuration.cert_file:
                used.rest_client.ssl_context.load_cert_chain(
                    configuration.cert_file, configuration.key_file
                )

    async def _ask(
        self, used: client.ApiClient, request: Request, limits: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        serialized = await used.param_serialize(
            request.method,
            request.path,
            query_params=list(request.query.items()),
            header_params={
                **request.headers,
                "Accept": request.accept,
                "Content-Type": request.content_type,
            },
            body=request.body,
            auth_settings=["BearerToken"],
        )
        if _is_write(request.method, request.query):
            seconds = min(self.write_seconds(), limits.total or math.inf)
            limits = limits if math.isinf(seconds) else _within(seconds)
        response: aiohttp.ClientResponse
        response = (await used.call_api(*serialized, _request_timeout=limits)).response
        return response

    def _trace(self) -> aiohttp.TraceConfig:
        """Asks `write_seconds` again as the first byte is about to be sent: a request waits for a
        connection, and aiohttp repeats some whose connection was cut."""

        async def about_to_send(_: object, __: object, params: _Sending) -> None:
            if _is_write(params.method, params.url.query):
                self.write_seconds()

        trace = aiohttp.TraceConfig()
        trace.on_request_headers_sent.append(about_to_send)
        trace.on_request_chunk_sent.append(about_to_send)  # in a task that begins later
        return trace


def _is_write(method: str, query: Mapping[str, str]) -> bool:
    return method != "GET" and "dryRun" not in query


def _within(seconds: float) -> aiohttp.ClientTimeout:
    """A time-out that is exact: aiohttp would round up those of five seconds and more."""
    return aiohttp.ClientTimeout(total=seconds, ceil_threshold=math.inf)


async def _refuses_log_in(answer: aiohttp.ClientResponse) -> bool:
    """Whether the API server refuses the credentials. A 401 that is no Status is of a service or
    pod behind it, which another log-in would not change."""
    if answer.status != UNAUTHORIZED:
        return False
    body = _body(answer, await answer.read())
    return isinstance(body, dict) and body.get("kind") == "Status"


def _body(answer: aiohttp.ClientResponse, text: bytes) -> Any:
    """The JSON body of an answer; None where an error has another body, such as a 404 for a kind
    that is being installed."""
    try:
        return msgspec.json.decode(text)
    except ValueError:
        if answer.status < 400:
            raise
        return None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    text = headers.get("Retry-After", "")
    return float(text) if text.isdecimal() else None
