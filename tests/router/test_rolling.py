"""A router is replaced under load: clients that keep their connections and never retry lose
nothing."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from aiohttp import web

from tests.router import fakes
from tests.router.raw_client import RawConnection, raw_connection
from tests.router.test_process import Process, running

CLIENTS = 12
EVENTS = 20
LAME_DUCK_SECONDS = 0.5
ANSWERS_BETWEEN_STEPS = 3 * CLIENTS


async def paced(engine: fakes.FakeEngine, request: web.Request) -> web.StreamResponse:
    """An answer of about 0.2 seconds: some end before, in and after the lame-duck time."""
    response = await fakes.start_stream(request)
    for number in range(EVENTS):
        await response.write(fakes.EVENT % number)
        await asyncio.sleep(0.01)
    await response.write(fakes.DONE)
    return response


class Service:
    """The routers that new connections reach, and what became of all requests."""

    def __init__(self) -> None:
        self.routers: list[Process] = []
        self.answered = 0
        self.failures: list[str] = []
        self.changed = asyncio.Condition()

    async def ask_until_cancelled(self, number: int) -> None:
        """One client: keeps its connection for as long as the server lets it."""
        while True:
            router = self.routers[number % len(self.routers)]
            async with raw_connection(router.url) as connection:
                while not await self._ask(connection):
                    pass

    async def _ask(self, connection: RawConnection) -> bool:
        """Whether the server closes the connection after this answer."""
        try:
            answer = await connection.ask()
        except (EOFError, ConnectionError) as error:
            await self._record(repr(error))
            return True
        whole = answer.status == 200 and answer.body.endswith(fakes.DONE)
        await self._record(None if whole else repr(answer))
        return answer.closes

    async def _record(self, failure: str | None) -> None:
        self.answered += failure is None
        self.failures += [failure] if failure else []
        async with self.changed:
            self.changed.notify_all()

    async def more_answers(self) -> None:
        target = self.answered + ANSWERS_BETWEEN_STEPS
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(lambda: self.answered >= target or self.failures)


@pytest.mark.process
async def test_kept_connections_lose_no_request_when_routers_are_replaced(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(fakes.running_engine(paced))
        config = tmp_path / "router.json"
        server = fakes.LOOPBACK | {"drainSeconds": 60, "lameDuckSeconds": LAME_DUCK_SECONDS}
        config.write_text(json.dumps({"engines": [engine.url], "server": server}))
        service = Service()
        service.routers.append(await stack.enter_async_context(running(config)))
        clients = [
            asyncio.create_task(service.ask_until_cancelled(number)) for number in range(CLIENTS)
        ]
        for _ in range(2):
            await service.more_answers()
            new = await stack.enter_async_context(running(config))
            (old,) = service.routers
            service.routers = [new, old]  # the cluster sends some connections to either
            await service.more_answers()
            old.process.send_signal(signal.SIGTERM)
            service.routers = [new]
            assert await asyncio.wait_for(old.process.wait(), 30) == 0
        await service.more_answers()
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    assert service.failures == []
