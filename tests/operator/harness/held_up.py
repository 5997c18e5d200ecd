"""The operator with a main loop that is held up as it is about to send a PATCH: it has a connection
and has sent nothing. Held up between SIGUSR1 and SIGUSR2, it reports what it sends after that.

Started as a program of its own.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

import aiohttp
from sluice_operator.__main__ import main

held_up = False
was_held_up = False
connect, start = aiohttp.TCPConnector.connect, aiohttp.ClientResponse.start


def switch(number: int, _: object) -> None:
    global held_up
    held_up = number == signal.SIGUSR1


async def connect_and_wait(
    self: aiohttp.TCPConnector, request: aiohttp.ClientRequest, *args: Any, **options: Any
) -> Any:
    global was_held_up
    connection = await connect(self, request, *args, **options)
    if held_up and request.method == "PATCH":
        print("held up", file=sys.stderr, flush=True)
        was_held_up = True
        while held_up:
            time.sleep(0.01)  # noqa: ASYNC251
    return connection


async def report_sent(self: aiohttp.ClientResponse, *args: Any) -> Any:
    if was_held_up and not held_up and self.method == "PATCH":
        print(f"sent late: {self.url}", file=sys.stderr, flush=True)
    return await start(self, *args)


aiohttp.TCPConnector.connect = connect_and_wait  # type: ignore[assignment, method-assign]
aiohttp.ClientResponse.start = report_sent  # type: ignore[assignment, method-assign]
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, switch)

if __name__ == "__main__":
    raise SystemExit(main())
