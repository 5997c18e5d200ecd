"""Hostile clients of a router, in a process of their own: each attack goes on in small doses.

`python -m tests.attack.attacks PORT KEY [NAME …]` attacks 127.0.0.1:PORT until SIGTERM, with the
attacks of these names or with all, then prints one JSON object: of each, how its requests ended.
KEY is a tenant's; half of the attacks need none. Attackers have computers of their own, so this
process yields the processors to router and engines.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from tests.disaggregated.engines import MODEL

MAX_CONNECTIONS: Final = 200
"""Of the router that is attacked."""
ENGINE: Final = {"maxRunningRequests": 32, "maxQueuedRequests": 64}
"""Of each engine behind it."""
TENANT_ANSWERS: Final = 32 + 64 * 3 // 4
"""That one tenant may have in an engine at once."""
SLOW_BODIES: Final = 20
ECHOES: Final = 12
ANSWER_SECONDS: Final = 60.0
HOLD_SECONDS: Final = 5.0
"""How long a connection is held that does nothing, or reads nothing."""
NICE: Final = 5
FORGED: Final = "\n2026-01-01 00:00:00,000 CRITICAL forged"
GET: Final = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
POST: Final = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
LONG_NAME: Final = "x" * 7_000_000
UNFINISHED_HEAD: Final = GET + b"".join(
    b"X-%d: %s\r\n" % (number, b"y" * 8000) for number in range(8)
)
NO_REQUESTS: Final = (
    b"this is no request\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"GET / HTTP/9.9\r\n\r\n",
    GET + b"no colon\r\n\r\n",
    GET + b"X-A: 1\n2026-01-01 00:00:00,000 CRITICAL forged\r\n\r\n",
    GET + b"X-A\r\nCRITICAL forged: 1\r\n\r\n",
    GET + b"X-Null: \0\r\n\r\n",
    POST + b"Content-Length: -1\r\n\r\n",
    POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    POST + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
    GET + b"".join(b"X-%d: 1\r\n" % number for number in range(10_000)) + b"\r\n",
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
)


@dataclass
class Router:
    """What is attacked, and how it has answered one attack."""

    port: int
    key: str
    ends: Counter[str] = field(default_factory=Counter)
    """Requests by their status, or by how their connection ended."""

    @asynccontextmanager
    async def connected(
        self, limit: int = 65_536
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection, broken off in the end; twice `limit` bytes are read ahead."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=limit)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def send(self, request: bytes) -> None:
        """One request; its answer is read, and the connection broken off."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS), self.connected() as (reader, writer):
                writer.write(request)
                line = await reader.readline()
                self.ends[line.split(b" ")[1].decode() if line else "closed"] += 1
                await reader.read()
        except OSError as error:  # a TimeoutError is one
            self.ends[type(error).__name__] += 1

    async def post(self, body: bytes, headers: str = "", path: str = "completions") -> None:
        """With the key."""
        head = f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self.key}\r\n"
        head += f"Connection: close\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        await self.send(head.encode() + body)


async def unread_pipeline(router: Router) -> None:
    """Without a key: 440 requests whose answers nobody reads, and a head of 15 MB behind them."""
    async with router.connected(limit=1) as (_, writer):
        writer.write((GET + b"\r\n") * 440 + GET + b"X-Long: " + b"x" * 15_000_000)
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                await writer.drain()
            router.ends["taken"] += 1
        except OSError as error:
            router.ends[type(error).__name__] += 1


async def idle_connections(router: Router) -> None:
    """Without a key: as many connections as there may be, on which nothing comes."""
    await _hold(router, b"")


async def unfinished_bodies(router: Router) -> None:
    """Without a key: on each connection that there may be, a body that does not come."""
    await _hold(router, POST + b"Content-Length: 100\r\n\r\n")


async def endless_heads(router: Router) -> None:
    """Without a key: on each connection that there may be, 64 KB of a head that does not end."""
    await _hold(router, UNFINISHED_HEAD)


async def slow_bodies_on_all_connections(router: Router) -> None:
    """On each connection that there may be, a body of the tenant that does not come."""
    key = f"Authorization: Bearer {router.key}\r\n".encode()
    await _hold(router, POST + key + b"Content-Length: 100\r\n\r\n{")


async def unread_echo(router: Router) -> None:
    """Twelve streams whose first events, of some 15 MB each, repeat a tool's long description, and
    which nobody reads."""
    tool = {"type": "function", "name": "f", "description": LONG_NAME}
    asked = {"model": MODEL, "input": "Story", "stream": True, "tool_choice": "none"}
    body = json.dumps(asked | {"tools": [tool], "max_output_tokens": 16}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {router.key}\r\n"
    request = head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    async with AsyncExitStack() as stack:
        for _ in range(ECHOES):
            _, writer = await stack.enter_async_context(router.connected(limit=1))
            writer.write(request)
            router.ends["sent"] += 1
        await asyncio.sleep(HOLD_SECONDS)


async def slow_bodies(router: Router) -> None:
    """Twenty bodies that do not come to their end, every other one without a key."""
    key = f"Authorization: Bearer {router.key}\r\n".encode()
    async with AsyncExitStack() as stack:
        heads = [POST + b"Content-Length: 100\r\n" + key * (n % 2) for n in range(SLOW_BODIES)]
        writers = []
        for head in heads:
            _, writer = await stack.enter_async_context(router.connected())
            writer.write(head + b"\r\n")
            writers.append(writer)
        router.ends["begun"] += len(writers)
        for _ in range(20):
            for writer in writers:
                if not writer.is_closing():
                    writer.write(b" ")
            await asyncio.sleep(1)


async def forged_lines(router: Router) -> None:
    """Line ends in names, values, ids and paths, which a log would show as lines of its own."""
    await router.post(json.dumps({f"kv_{FORGED}": 1}).encode())
    await router.post(_completion(model=FORGED))
    await router.post(_completion(**{FORGED: 1}, max_tokens=1))
    await router.post(_completion(stop=[FORGED] * 100))
    await router.post(f"x{FORGED}".encode())
    await router.send(b"GET /%0A2026-01-01%20CRITICAL%20forged HTTP/1.1\r\nHost: x\r\n\r\n")
    await router.send(GET + b"X-Request-Id: a\x0b\x85 CRITICAL forged\r\nConnection: close\r\n\r\n")


async def long_names(router: Router) -> None:
    """Names of 7 MB: of a field that is refused, of one that the engine ignores, of a model."""
    await router.post(json.dumps({f"kv_{LONG_NAME}": 1}).encode())
    await router.post(_completion(**{LONG_NAME: 1}, max_tokens=1))
    await router.post(_completion(model=LONG_NAME))


async def malformed(router: Router) -> None:
    """Without a key: what is no HTTP request, or one that servers read in different ways."""
    for request in NO_REQUESTS:
        await router.send(request)


async def unknown_expectation(router: Router) -> None:
    """Without a key: an expectation that nobody knows, which the HTTP library answers itself."""
    await router.send(POST + b"Expect: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")


async def tiny_keys(router: Router) -> None:
    """A body of 830,000 names, each of which would be an object."""
    tiny_keys = b",".join(b'"%x":0' % number for number in range(830_000))
    await router.post(b"{%b}" % tiny_keys)


async def many_prompts(router: Router) -> None:
    """One request for 48 answers, under a routing key that was never seen."""
    body = _completion(prompt=["Story"] * 12, n=4, max_tokens=64, ignore_eos=True, temperature=1.0)
    await router.post(body, f"X-Sluice-Routing-Key: {uuid.uuid4()}\r\n")


async def big_answers(router: Router) -> None:
    """An answer that is not streamed, of 4 choices with 20 scores for each token."""
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "Story"}], "n": 4}
    chat |= {"logprobs": True, "top_logprobs": 20, "max_tokens": 500, "ignore_eos": True}
    await router.post(json.dumps(chat | {"temperature": 1.0}).encode(), path="chat/completions")


async def refused_flood(router: Router) -> None:
    """Thirty requests at once, each for as many answers as a tenant may have in an engine."""
    body = _completion(prompt=["x"] * (TENANT_ANSWERS // 16), n=16, max_tokens=8)
    await asyncio.gather(*(router.post(body) for _ in range(30)))


ATTACKS: Final[dict[Callable[[Router], Awaitable[None]], float]] = {
    unread_pipeline: 0.5,
    idle_connections: 0.5,
    unfinished_bodies: 0.5,
    endless_heads: 0.5,
    slow_bodies_on_all_connections: 0.5,
    unread_echo: 1.0,
    slow_bodies: 0.5,
    forged_lines: 0.5,
    long_names: 1.0,
    malformed: 0.5,
    unknown_expectation: 0.1,
    tiny_keys: 1.0,
    many_prompts: 0.2,
    big_answers: 0.2,
    refused_flood: 1.0,
}
"""Each with the seconds between two doses."""


async def _hold(router: Router, sent: bytes) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            _, writer = await stack.enter_async_context(router.connected())
            writer.write(sent)
            router.ends["opened"] += 1
        await asyncio.sleep(HOLD_SECONDS)


def _completion(**fields: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "Story", **fields}).encode()


async def _repeat(attack: Callable[[Router], Awaitable[None]], router: Router) -> None:
    while True:
        try:
            await attack(router)
        except OSError as error:
            router.ends[type(error).__name__] += 1
        await asyncio.sleep(ATTACKS[attack])


async def _main(port: int, key: str, names: Sequence[str]) -> None:
    chosen = [attack for attack in ATTACKS if not names or attack.__name__ in names]
    routers = {attack: Router(port, key) for attack in chosen}
    tasks = [asyncio.create_task(_repeat(attack, router)) for attack, router in routers.items()]
    stop = asyncio.create_task(_stopped())
    done, _ = await asyncio.wait([stop, *tasks], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    print(json.dumps({attack.__name__: dict(router.ends) for attack, router in routers.items()}))


async def _stopped() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


if __name__ == "__main__":
    os.nice(NICE)
    asyncio.run(_main(int(sys.argv[1]), sys.argv[2], sys.argv[3:]))
