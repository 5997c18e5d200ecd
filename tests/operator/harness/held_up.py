"""The operator with a main loop that is held up as it is about to write: between SIGUSR1 and
SIGUSR2. It reports what it sends after that.

Started as a program of its own.
"""

from __future__ import annotations

import signal
import sys
import time
from typing import Any

from sluice_operator.__main__ import main
from sluice_operator.kube.client import ApiClient
from sluice_operator.kube.connection import Connection, Request, Response

held_up = False
was_held_up = False
apply, send = ApiClient.apply, Connection.send


def switch(number: int, _: object) -> None:
    global held_up
    held_up = number == signal.SIGUSR1


async def apply_later(self: ApiClient, *args: Any, **options: Any) -> Any:
    global was_held_up
    if held_up:
        print("held up", file=sys.stderr, flush=True)
        was_held_up = True
    while held_up:
        time.sleep(0.01)  # noqa: ASYNC251
    return await apply(self, *args, **options)


async def report_sent(self: Connection, request: Request) -> Response:
    if was_held_up and not held_up and request.method == "PATCH":
        print(f"sent late: {request}", file=sys.stderr, flush=True)
    return await send(self, request)


ApiClient.apply = apply_later  # type: ignore[method-assign]
Connection.send = report_sent  # type: ignore[method-assign]
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, switch)

if __name__ == "__main__":
    raise SystemExit(main())
