"""Says what a person is waiting for and for how long. Writes to standard error only.

In a terminal, one line counts up in place, with a bar where the total is known. Elsewhere (a log,
CI), a line is added now and then, which repeats no detail.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from types import TracebackType
from typing import Self

TERMINAL_REFRESH_SECONDS = 0.5
LOG_REFRESH_SECONDS = 15.0
CLEAR_LINE = "\r\x1b[2K"
BAR_CELLS = 32


class Step:
    """One named wait, as a context manager: announced, counted, and marked done or failed."""

    def __init__(self, title: str, log_refresh_seconds: float = LOG_REFRESH_SECONDS) -> None:
        self._title = title
        self._log_refresh_seconds = log_refresh_seconds
        self._detail, self._bar = "", ""
        self._start_seconds = time.monotonic()
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)
        self._in_terminal = sys.stderr.isatty()

    @property
    def elapsed_seconds(self) -> float:
        return time.monotonic() - self._start_seconds

    def detail(self, text: str) -> None:
        """Sets the detail of what is being waited for; shown with the next tick."""
        self._detail = text

    def reached(self, done: int, total: int, what: str) -> None:
        """Sets the progress, shown as a bar; `what` names the things that are counted."""
        self._bar = f"{bar(done / total)} {done} of {total} {what}" if total else ""

    def __enter__(self) -> Self:
        self._start_seconds = time.monotonic()
        if not self._in_terminal:
            say(f"… {self._title}")
        self._ticker.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._ticker.join()
        clear = CLEAR_LINE if self._in_terminal else ""
        mark = "✓" if kind is None else "✗"
        say(f"{clear}{mark} {self._title}  {self.elapsed_seconds:.1f} s")

    def _tick(self) -> None:
        pause = TERMINAL_REFRESH_SECONDS if self._in_terminal else self._log_refresh_seconds
        shown = ""
        while not self._stop.wait(pause):
            detail = self._detail
            line = f"… {self._title}  {self.elapsed_seconds:.0f} s"
            if self._in_terminal:
                # Cut to one row, because only the last row of a wrapped line could be cleared.
                line = f"{line}  {self._bar}" if self._bar else line
                line = _with_detail(line, detail)[: shutil.get_terminal_size().columns - 1]
                sys.stderr.write(CLEAR_LINE + line)
                sys.stderr.flush()
            else:
                say(_with_detail(line, detail if detail != shown else ""))
                shown = detail


def bar(share: float) -> str:
    """A progress bar, drawn as by `sluice rollout status`; full only if `share` is 1."""
    heavy = int(share * BAR_CELLS)
    return "━" * heavy + "·" * (BAR_CELLS - heavy)


def time_on_idle_cores(minutes: int, load: float | None = None) -> str:
    """How long a build takes on two idle cores, beside this machine's cores and load (that of the
    last minute, unless given)."""
    load = os.getloadavg()[0] if load is None else load
    own = f"this machine has {os.cpu_count()}, with a load of {load:.0f}"
    return f"{minutes} minutes the first time on two idle cores; {own}"


def _with_detail(line: str, detail: str) -> str:
    return f"{line} · {detail}" if detail else line


def say(text: str) -> None:
    """Prints one line to standard error, for the person who waits."""
    print(text, file=sys.stderr, flush=True)
