"""What answers become, over a real connection, and when it logs in again."""

from __future__ import annotations

import asyncio
import json
import pkgutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from kubernetes.aio import client
from kubernetes.aio.config import incluster_config
from sluice_operator.handlers import as_connection_info, as_session
from sluice_operator.kube.connection import Connection, LogIn, Request, Response, log_in
from sluice_operator.kube.errors import (
    ApiError,
    LeaseLostError,
    OperatorError,
    UnavailableError,
)

from e2e.cluster.bare.certs import create_authority, issue
from tests.operator.harness.cluster import plain_log_in

PLAIN = "404 page not found"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
REQUEST = Request("GET", "/apis")
NAMES = {"cluster": "a", "user": "a"}


@asynccontextmanager
async def served(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL of a server on loopback."""
    app = web.Application()
    app.add_routes([web.route("*", "/apis", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (200, '{"a": 1}', Response(200, {"a": 1})),
        (404, '{"reason": "NotFound"}', Response(404, {"reason": "NotFound"})),
        (404, PLAIN, Response(404, None)),
        (503, "", Response(503, None)),
        (200, PLAIN, None),
    ],
)
async def test_errors_are_told_by_their_status_whatever_their_body(
    status: int, text: str, expected: Response | None
) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    async with (
        served(answer) as url,
        aclosing(Connection(5.0, plain_log_in(url))) as connection,
    ):
        if expected is None:
            with pytest.raises(UnavailableError, match="GET /apis"):
                await connection.send(REQUEST)
        else:
            assert await connection.send(REQUEST) == expected


async def test_a_server_that_nobody_runs_is_named_in_words() -> None:
    async with aclosing(Connection(5.0, plain_log_in("http://127.0.0.1:1"))) as connection:
        with pytest.raises(UnavailableError, match=r"^GET /apis: Cannot connect to host 127"):
            await connection.send(REQUEST)


async def test_silence_after_an_event_ends_a_watch() -> None:
    over = asyncio.Event()

    async def one_line(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"{}\n")
        await over.wait()
        return response

    async with (
        served(one_line) as url,
        aclosing(Connection(5.0, plain_log_in(url), silence_seconds=0.05)) as connection,
    ):
        lines = connection.lines(REQUEST)
        assert await anext(lines) == b"{}\n"
        with pytest.raises(UnavailableError, match=r"GET /apis: nothing for 0\.05 seconds"):
            await anext(lines)
        over.set()


async def test_a_watch_that_is_to_be_asked_for_later_says_when() -> None:
    async def busy(_: web.Request) -> web.Response:
        return web.Response(status=429, headers={"Retry-After": "7"})

    async with (
        served(busy) as url,
        aclosing(Connection(5.0, plain_log_in(url))) as connection,
    ):
        with pytest.raises(UnavailableError, match="429") as refused:
            await anext(connection.lines(REQUEST))
    assert refused.value.retry_after_seconds == 7


async def test_a_line_that_is_too_long_breaks_a_watch_off() -> None:
    async def long_line(_: web.Request) -> web.Response:
        return web.Response(text="x" * 5_000_000)

    async with (
        served(long_line) as url,
        aclosing(Connection(5.0, plain_log_in(url))) as connection,
    ):
        with pytest.raises(UnavailableError):
            await anext(connection.lines(REQUEST))


UNAUTHORIZED_STATUS: Final = {"kind": "Status", "apiVersion": "v1", "reason": "Unauthorized"}


class Tokens:
    """Logs in with the token that is valid at the time; the server accepts no other."""

    def __init__(self) -> None:
        self.url = ""
        self.valid = "first"
        self.may_log_in = True
        self.log_ins = 0

    async def log_in(self) -> LogIn:
        if not self.may_log_in:
            raise OperatorError("no token")
        self.log_ins += 1
        api_key = {"BearerToken": f"Bearer {self.valid}"}
        return LogIn(client.Configuration(host=self.url, api_key=api_key))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {self.valid}":
            return web.json_response(UNAUTHORIZED_STATUS, status=401)
        return web.Response(text='{"a": 1}\n')


async def test_a_netrc_is_nothing_to_the_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its password would go to the API server, and beside a token no request would be sent."""
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    seen: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response({})

    async with served(answer) as url:
        configuration = client.Configuration(host=url)
        async with aclosing(Connection(5.0, as_log_in(configuration))) as connection:
            await connection.send(REQUEST)
            configuration.api_key["BearerToken"] = "Bearer t"
            await connection.send(REQUEST)
        session = as_session(as_connection_info(LogIn(configuration)), no_watch)
        async with session.aiohttp_session as watches, watches.get(f"{url}/apis"):
            pass
    assert seen == [None, "Bearer t", "Bearer t"]


def as_log_in(configuration: client.Configuration) -> Callable[[], Awaitable[LogIn]]:
    async def logged_in() -> LogIn:
        return LogIn(configuration)

    return logged_in


async def no_watch(_: str) -> None: ...


@pytest.mark.parametrize("is_direct", [False, True])
async def test_a_proxy_of_the_environment_holds_for_requests_and_watches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_direct: bool
) -> None:
    seen: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append((str(request.url), request.headers.get("Proxy-Authorization")))
        return web.json_response({})

    async with served(answer) as url:
        server = url if is_direct else "http://kubernetes.invalid"
        monkeypatch.setenv("http_proxy", url.replace("//", "//user:word@"))
        monkeypatch.setenv("no_proxy", "127.0.0.1" if is_direct else "")
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, server)))
        async with aclosing(Connection(5.0, log_in)) as connection:
            await connection.send(REQUEST)
        session = as_session(as_connection_info(await log_in()), no_watch)
        async with session.aiohttp_session as watches, watches.get(f"{server}/apis"):
            pass
    credentials = None if is_direct else "Basic dXNlcjp3b3Jk"
    assert seen == [(f"{server}/apis", credentials)] * 2


def kubeconfig(folder: Path, server: str) -> Path:
    named = [{"name": "a", "cluster": {"server": server}, "user": {}, "context": NAMES}]
    config = {"clusters": named, "users": named, "contexts": named, "current-context": "a"}
    file = folder / "kubeconfig"
    file.write_text(json.dumps(config))
    return file


async def test_a_refused_token_is_read_again_for_requests_and_for_watches() -> None:
    tokens = Tokens()
    async with (
        served(tokens.answer) as tokens.url,
        aclosing(Connection(5.0, tokens.log_in)) as connection,
    ):
        assert (await connection.send(REQUEST)).status == 200
        tokens.valid = "second"
        assert [line async for line in connection.lines(REQUEST)] == [b'{"a": 1}\n']
        tokens.valid = "third"
        sent = [connection.send(REQUEST) for _ in range(3)]
        assert {answer.status for answer in await asyncio.gather(*sent)} == {200}
    assert tokens.log_ins == 3, "once for each token, whoever noticed"


@pytest.mark.parametrize("body", [b'{"error": {"message": "No key."}}', b"[]", b"no JSON"])
async def test_a_key_that_a_service_refuses_is_no_reason_to_log_in_again(body: bytes) -> None:
    """The API server passes the answer on, as it is."""
    tokens, arrived = Tokens(), 0

    async def refuses(_: web.Request) -> web.StreamResponse:
        nonlocal arrived
        arrived += 1
        return web.Response(body=body, status=401)

    async with (
        served(refuses) as tokens.url,
        aclosing(Connection(5.0, tokens.log_in)) as connection,
        connection.stream(WRITE) as answer,
    ):
        assert (answer.status, await answer.read()) == (401, body)
    assert (tokens.log_ins, arrived) == (1, 1)


async def test_a_token_that_stays_refused_is_an_answer_and_one_that_is_missing_is_none() -> None:
    tokens = Tokens()
    async with (
        served(tokens.answer) as tokens.url,
        aclosing(Connection(5.0, tokens.log_in)) as connection,
    ):
        assert (await connection.send(REQUEST)).status == 200
        tokens.valid, tokens.may_log_in = "second", False
        with pytest.raises(UnavailableError, match=r"GET /apis: log-in: no token"):
            await connection.send(REQUEST)
        wrong = client.Configuration(host=tokens.url)

        async def logs_in_in_vain() -> LogIn:
            return LogIn(wrong)

        async with aclosing(Connection(5.0, logs_in_in_vain)) as other:
            assert (await other.send(REQUEST)).status == 401
            with pytest.raises(ApiError, match="401"):
                await anext(aiter(other.lines(REQUEST)))


async def test_another_authority_is_read_where_the_certificate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a rotation of the cluster's, when the files in the pod have changed."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="{}")

    authorities = [create_authority(tmp_path, name) for name in ("former", "new")]
    pair = issue(authorities[1], tmp_path, "server", user="server", hosts=["127.0.0.1"])
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(pair.certificate, pair.key)
    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    token.write_text("t")
    authority.write_bytes(authorities[0].certificate.read_bytes())
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    async with served(answer, tls) as url, aclosing(Connection(5.0)) as connection:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", url.rpartition(":")[2])
        with pytest.raises(UnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
            await connection.send(REQUEST)
        authority.write_bytes(authorities[1].certificate.read_bytes())
        assert (await connection.send(REQUEST)).status == 200
        assert await connection.namespace() == "default"


WRITE = Request("PUT", "/apis", {"fieldManager": "a"}, {"a": 1})
DRY_RUN = Request("POST", "/apis", {"dryRun": "All"}, {"a": 1})


class Term:
    """A leader's term, and a server that notes what arrives."""

    def __init__(self) -> None:
        self.left_seconds = 5.0
        self.arrived: list[str] = []
        self.answers: Answer = self.accepts

    def write_seconds(self) -> float:
        if self.left_seconds <= 0:
            raise LeaseLostError("over")
        return self.left_seconds

    def end(self) -> None:
        self.left_seconds = 0.0

    async def accepts(self, _: web.Request) -> web.StreamResponse:
        return web.json_response({})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.arrived.append(request.method)
        return await self.answers(request)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        async with (
            served(self.answer) as url,
            aclosing(Connection(5.0, plain_log_in(url))) as connection,
        ):
            connection.write_seconds = self.write_seconds
            yield connection


async def test_once_the_lease_is_lost_it_reads_and_tries_out_but_writes_nothing() -> None:
    term = Term()
    term.end()
    async with term.connection() as connection:
        assert (await connection.send(REQUEST)).status == 200
        assert (await connection.send(DRY_RUN)).status == 200
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            with pytest.raises(LeaseLostError):
                await connection.send(Request(method, "/apis", body={}))
    assert term.arrived == ["GET", "POST"]


@pytest.mark.parametrize(
    "step",
    [
        "sluice_operator.kube.connection.Connection._logged_in",
        "kubernetes.aio.client.ApiClient.param_serialize",
        "aiohttp.ClientSession._request",
        "aiohttp.TCPConnector.connect",
        "aiohttp.ClientRequest.send",
        "aiohttp.ClientRequest.write_bytes",
    ],
)
async def test_a_write_that_is_held_up_on_its_way_until_the_lease_is_lost_does_not_arrive(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    term, original = Term(), pkgutil.resolve_name(step)

    async def held_up(*args: Any, **options: Any) -> Any:
        term.end()
        return await original(*args, **options)

    monkeypatch.setattr(step, held_up)
    async with term.connection() as connection:
        with pytest.raises((LeaseLostError, UnavailableError)):
            await connection.send(WRITE)
    assert term.arrived == []


async def test_a_write_is_not_repeated_with_other_credentials_once_the_lease_is_lost() -> None:
    term = Term()

    async def refuses(_: web.Request) -> web.StreamResponse:
        term.end()
        return web.json_response(UNAUTHORIZED_STATUS, status=401)

    term.answers = refuses
    async with term.connection() as connection:
        with pytest.raises(LeaseLostError):
            await connection.send(WRITE)
    assert term.arrived == ["PUT"]


async def test_a_write_whose_connection_was_cut_is_not_repeated_once_the_lease_is_lost() -> None:
    """aiohttp repeats it by itself."""
    term = Term()

    async def cuts(request: web.Request) -> web.StreamResponse:
        term.end()
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    term.answers = cuts
    async with term.connection() as connection:
        with pytest.raises(LeaseLostError):
            await connection.send(WRITE)
    assert term.arrived == ["PUT"]


async def test_a_write_may_take_no_longer_than_the_lease_allows() -> None:
    term, over = Term(), asyncio.Event()
    term.left_seconds = 0.02

    async def hangs(_: web.Request) -> web.StreamResponse:
        await over.wait()
        return web.Response()

    term.answers = hangs
    async with term.connection() as connection, asyncio.timeout(2):
        with pytest.raises(UnavailableError):
            await connection.send(WRITE)
        over.set()
