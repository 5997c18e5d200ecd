"""Server-sent events as bytes: where one ends, which belong together, and which one ends a stream.

Knows nothing of what events carry except OpenAI's `[DONE]` and error events.
"""

from __future__ import annotations

from typing import Final

from sluice_contract.private_calls import MORE_LINE

END: Final = b"\n\n"
DONE: Final = b"data: [DONE]\n\n"
ERROR_START: Final = b'data: {"error"'
CONTENT_TYPE: Final = "text/event-stream"


class WholeEvents:
    """Lets whole events through at once and holds back the beginning of an unfinished one, and of
    several that belong together.

    A client then never sees half an event, even when an engine dies in the middle of writing it.
    """

    def __init__(self) -> None:
        self._unfinished = bytearray()
        self._last = b""

    def feed(self, chunk: bytes) -> bytes:
        """The whole events that `chunk` completes; empty when it completes none."""
        if (
            not self._unfinished
            and chunk.endswith(END)
            and _without_open_group(chunk, len(chunk)) == len(chunk)
        ):
            self._last = chunk
            return chunk
        searched = max(0, len(self._unfinished) - 1)
        self._unfinished += chunk
        cut = self._unfinished.rfind(END, searched) + len(END)
        if cut >= len(END):
            cut = _without_open_group(self._unfinished, cut)
        if cut < len(END):
            return b""
        whole = bytes(self._unfinished[:cut])
        del self._unfinished[:cut]
        self._last = whole
        return whole

    @property
    def ended(self) -> bool:
        """Whether the last event let through ends the stream: `[DONE]` or an error."""
        if self._last.endswith(DONE):
            return True
        last_event = self._last.removesuffix(END).rpartition(END)[2]
        return last_event.startswith(ERROR_START)


def _without_open_group(events: bytes | bytearray, end: int) -> int:
    """Where the last of the events before `end` ends that does not belong to a later one."""
    while end:
        last = events.rfind(END, 0, end - len(END))
        begin = 0 if last < 0 else last + len(END)
        if not events.startswith(MORE_LINE, begin):
            break
        end = begin
    return end


def error_in(chunk: bytes) -> bytes | None:
    """The error JSON, when a stream's first bytes are an error event: nothing was generated."""
    if not chunk.startswith(ERROR_START):
        return None
    return chunk.partition(END)[0].removeprefix(b"data: ")


def error_event(body: bytes) -> bytes:
    """An error as the last event of a stream."""
    return b"data: " + body + END


def first_data(events: bytes) -> bytes:
    """What the first of these events carries; empty where there is none."""
    return events.partition(END)[0].removeprefix(b"data: ")
