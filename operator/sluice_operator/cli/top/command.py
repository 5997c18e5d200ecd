"""`sluice top [NAME]`: services, pools and engines of a cluster as a live table.

Reads with the rights of the kubeconfig's user. Changes nothing. Without a terminal it prints once.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import signal
import sys
import termios
import tty
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from sluice_operator.cli.rollout.session import MissingServiceError
from sluice_operator.cli.top.picture import Look, picture
from sluice_operator.cli.top.screen import Screen, actions
from sluice_operator.cli.top.snapshot import ClusterReader, Snapshot
from sluice_operator.kube.connection import Connection
from sluice_operator.kube.errors import OperatorError

FAILED: Final = 1
UNUSABLE: Final = 2
TIMEOUT_SECONDS: Final = 5.0
EVERY_SECONDS: Final = 2.0
CLEAR_LINE: Final = "\r\x1b[2K"
WINDOW_SECONDS: Final = 10.0
"""Time of the rates and of TTFT: to the newest look that is so old, else to the oldest."""
PRINTED_COLUMNS: Final = 120
"""Columns of the output without a terminal and without COLUMNS."""
STATUSES: Final = (
    "Exit status: 0; 1 where there is no such service; 2 where there is no cluster, or services "
    "may not be read; 130 after Ctrl-C, 0 after q. What else the user may not read stays empty, "
    "and a line names the missing right."
)


def run(arguments: Sequence[str]) -> int:
    """The command; see `STATUSES`."""
    if sys.stdout.isatty():
        print(CLEAR_LINE, end="", flush=True)  # what `entry` shows during the imports
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.name and options.all_namespaces:
        parser.error("a NAME is of one namespace: give -n NAMESPACE instead of -A")
    try:
        return asyncio.run(_run(options, _console()))
    except MissingServiceError as error:
        print(f"sluice top: {error}", file=sys.stderr)
        return FAILED
    except OperatorError as error:
        print(f"sluice top: {error}", file=sys.stderr)
        return UNUSABLE


def _console() -> Console:
    """Console on standard output. A character that its encoding lacks becomes a question mark."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    is_wide = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PRINTED_COLUMNS if is_wide else None, highlight=False)


async def _run(options: argparse.Namespace, console: Console) -> int:
    async with aclosing(Connection(TIMEOUT_SECONDS)) as connection:
        place = None
        if not options.all_namespaces:
            place = options.namespace or await connection.namespace()
        where = f"namespace {place}" if place else "all namespaces"
        reader = ClusterReader(connection, lambda: datetime.now(UTC), place, options.name)
        if options.once or not console.is_terminal or console.is_dumb_terminal:
            console.print(picture(await reader.snapshot(), where, Look(console.width)))
            return 0
        begun = Text(f"connecting to {await connection.server()}, {where} …")
        return await _follow(snapshots(reader.snapshot, options.every), where, console, begun)


async def _follow(
    looks: AsyncGenerator[Snapshot, None], where: str, console: Console, begun: Text
) -> int:
    """Draws each look and after each key, until a key or a signal ends it. The terminal then is as
    it was before."""
    ended_by = _cancelled_by_signals()
    screen, changed = Screen(), asyncio.Event()
    last: Snapshot | None = None

    async def look() -> None:
        nonlocal last
        try:
            async with aclosing(looks):
                async for snapshot in looks:
                    last = snapshot
                    changed.set()
        finally:
            changed.set()

    def typed(keys: bytes) -> None:
        for action in actions(keys):
            screen.act(action)
        changed.set()

    task = asyncio.create_task(look())
    try:
        with (
            Live(begun, console=console, screen=True, auto_refresh=False) as live,
            _typed_keys(typed),
        ):
            live.refresh()
            while not screen.has_quit:
                await changed.wait()
                changed.clear()
                if task.done():
                    await task
                if last is not None:
                    live.update(screen.drawn(last, where, console), refresh=True)
        return 0
    except asyncio.CancelledError:
        if not ended_by:
            raise
        return 128 + ended_by[0]
    finally:
        task.cancel()


async def snapshots(
    read: Callable[[], Awaitable[Snapshot]], every_seconds: float
) -> AsyncGenerator[Snapshot, None]:
    """The cluster at each look, with an earlier one. While the API server refuses or does not
    answer after the first look: the last, with a note.

    Raises:
        OperatorError: the first look failed.
    """
    last = await read()
    earlier = deque([last])
    while True:
        yield last
        await asyncio.sleep(every_seconds)
        try:
            last = await read()
        except OperatorError as error:
            note = f"as of {last.now:%H:%M:%S}, the API server did not answer: {error}"
            last = replace(last, notes=(note,))
            continue
        while len(earlier) > 1 and (last.now - earlier[1].now).total_seconds() >= WINDOW_SECONDS:
            earlier.popleft()
        before = earlier[0]
        earlier.append(last)
        last = replace(last, before=before)


@contextmanager
def _typed_keys(typed: Callable[[bytes], None]) -> Iterator[None]:
    """Calls `typed` with what a person types, unseen and without Enter. Without a terminal on
    standard input nothing is read."""
    if not sys.stdin.isatty():
        yield
        return
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, lambda: typed(os.read(descriptor, 1024)))
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _cancelled_by_signals() -> list[int]:
    """Makes SIGINT and SIGTERM cancel the current task. The list returned gets their numbers."""
    received: list[int] = []
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None

    def end(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, end, int(number))
    return received


def _seconds(word: str) -> float:
    value = float(word)
    if not 0.5 <= value <= 3600:
        raise ValueError
    return value


_seconds.__name__ = "number of seconds from 0.5 to 3600"


def _parser() -> argparse.ArgumentParser:
    text = (
        "Services, pools and engines of a cluster: requests and tokens a second, TTFT, queues, "
        "running requests, KV pages, ITL, what drains and why, roll-outs, the last scaling, and "
        "what became of requests. Key ? shows the keys."
    )
    parser = argparse.ArgumentParser(prog="sluice top", description=text, epilog=STATUSES)
    parser.add_argument("name", nargs="?", help="of an InferenceService (default: all)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("-n", "--namespace", help="default: that of the kubeconfig's context")
    where.add_argument("-A", "--all-namespaces", action="store_true", help="every namespace")
    text = "between two looks at the cluster (%(default)g)"
    parser.add_argument(
        "--every", type=_seconds, default=EVERY_SECONDS, metavar="SECONDS", help=text
    )
    text = "print once and end, as without a terminal"
    parser.add_argument("--once", action="store_true", help=text)
    return parser
