"""What of a picture a terminal shows, and what a key changes of that.

Pure. The last line names the keys and the lines that are shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.segment import SegmentLines
from rich.text import Text

from sluice_operator.cli.top.picture import QUIET, SORTS, Look, picture
from sluice_operator.cli.top.snapshot import Snapshot

SEQUENCE: Final = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|[\x00-\xff]")
KEYS: Final = {
    b"q": "quit", b"?": "help", b"h": "help", b"s": "sort",
    b"\x1b[A": "up", b"\x1bOA": "up", b"k": "up",
    b"\x1b[B": "down", b"\x1bOB": "down", b"j": "down",
    b"\x1b[5~": "page up", b"\x1b[6~": "page down", b" ": "page down",
    b"\x1b[H": "home", b"\x1b[1~": "home", b"g": "home",
    b"\x1b[F": "end", b"\x1b[4~": "end", b"G": "end",
}  # fmt: skip
HELP: Final = f"""\
q          quits; so does Ctrl-C
↑ ↓        scroll by a line; also k and j
PgUp PgDn  scroll by a page; also the space bar
Home End   first and last line; also g and G
s          sorts engines by {", ".join(SORTS)}
?          this page; any key leaves it"""


def actions(keys: bytes) -> Iterator[str]:
    """Actions of what was typed; keys without one are empty text."""
    return (KEYS.get(key, "") for key in SEQUENCE.findall(keys))


class Screen:
    """The part of a picture that is shown."""

    def __init__(self) -> None:
        self.has_quit = False
        self._first = 0
        """Number of lines above the screen."""
        self._page = 1
        """Lines of a page when it was drawn last."""
        self._sort = 0
        self._has_help = False

    def act(self, action: str) -> None:
        """Does what a key says."""
        if action == "quit":
            self.has_quit = True
        elif self._has_help or action == "help":
            self._has_help = not self._has_help
        elif action == "sort":
            self._sort = (self._sort + 1) % len(SORTS)
        else:
            steps = {
                "up": -1, "down": 1, "page up": -self._page, "page down": self._page,
                "home": -self._first, "end": 1 << 30,
            }  # fmt: skip
            self._first = max(0, self._first + steps.get(action, 0))

    def drawn(self, snapshot: Snapshot, where: str, console: Console) -> RenderableType:
        """The snapshot as far as it fits the terminal."""
        self._page = max(1, console.height - 1)
        look = Look(console.width, tuple(SORTS)[self._sort])
        part = Text(HELP) if self._has_help else picture(snapshot, where, look)
        lines = console.render_lines(part, pad=False)
        first = 0 if self._has_help else min(self._first, max(0, len(lines) - self._page))
        if not self._has_help:
            self._first = first
        shown = lines[first : first + self._page]
        blank = "\n" * (self._page - len(shown))
        footer = Text(style=QUIET, no_wrap=True, overflow="ellipsis", end="")
        if len(lines) > self._page:
            footer.append(f"lines {first + 1}-{first + len(shown)} of {len(lines)}  ", "bold")
        footer.append(f"q quits  ↑↓ scroll  s sorts, now by {look.sort}  ? help")
        return Group(SegmentLines(shown, new_lines=True), Text(blank, end=""), footer)
