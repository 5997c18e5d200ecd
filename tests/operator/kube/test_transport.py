"""What answers become, over a real connection."""

from __future__ import annotations

import kopf
import pytest
from aiohttp import web
from sluice_operator.kube.errors import UnavailableError
from sluice_operator.kube.transport import HttpTransport, Request, Response

PLAIN = "404 page not found"


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

    app = web.Application()
    app.add_routes([web.get("/apis", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    connection = kopf.ConnectionInfo(server=f"http://127.0.0.1:{runner.addresses[0][1]}")
    transport = HttpTransport(5.0, lambda: connection)
    try:
        if expected is None:
            with pytest.raises(UnavailableError, match="GET /apis"):
                await transport.send(Request("GET", "/apis"))
        else:
            assert await transport.send(Request("GET", "/apis")) == expected
    finally:
        await transport.close()
        await runner.cleanup()


async def test_a_server_that_nobody_runs_is_named_in_words() -> None:
    transport = HttpTransport(5.0, lambda: kopf.ConnectionInfo(server="http://127.0.0.1:1"))
    try:
        with pytest.raises(UnavailableError, match=r"^GET /apis: Cannot connect to host 127"):
            await transport.send(Request("GET", "/apis"))
    finally:
        await transport.close()
