"""Server-sent events as bytes: where one ends, which belong together, and which one ends a stream.

Of what events carry, only what ends a stream is looked at: OpenAI's `[DONE]`, Anthropic's
`message_stop`, and error events of both.
"""

from __future__ import annotations

from typing import Final

from sluice_contract.http_errors import ANTHROPIC_PATHS
from sluice_contract.wire.private_calls import MORE_LINE

END: Final = b"\n\n"
DONE: Final = b"data: [DONE]\n\n"
_MESSAGE_STOP: Final = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
ENDS: Final = (DONE, _MESSAGE_STOP)
"""The last event of a stream that is whole, by the route."""
ERROR_START: Final = b'data: {"error"'
"""Also on Anthropic's routes in answers to private calls."""
_NAMED_ERROR: Final = b"event: error\n"
_ERROR_STARTS: Final = (ERROR_START, _NAMED_ERROR + b"data: ")
_DATA: Final = b"data: "
CONTENT_TYPE: Final = "text/event-stream"


class WholeEvents:
    """Lets whole events through at once and holds back the beginning of an unfinished one, and of
    several that belong together.

    A client then never sees half an event, even when an engine dies in the middle of writing it.
    """

    def __init__(self) -> None:
        self._unfinished = bytearray()

    @property
    def held_bytes(self) -> int:
        """Bytes that are held back."""
        return len(self._unfinished)

    def feed(self, chunk: bytes) -> bytes | bytearray:
        """The whole events that `chunk` completes; empty when it completes none. It makes no copy
        of what was held back."""
        if (
            not self._unfinished
            and chunk.endswith(END)
            and _without_open_group(chunk, len(chunk)) == len(chunk)
        ):
            return chunk
        searched = max(0, len(self._unfinished) - 1)
        self._unfinished += chunk
        cut = self._unfinished.rfind(END, searched) + len(END)
        if cut >= len(END):
            cut = _without_open_group(self._unfinished, cut)
        if cut < len(END):
            return b""
        whole, self._unfinished = self._unfinished, self._unfinished[cut:]
        del whole[cut:]
        return whole


def ends_stream(events: bytes | bytearray) -> bool:
    """Whether the last of these whole events ends the stream."""
    if events.endswith(ENDS):
        return True
    before = events.rfind(END, 0, max(0, len(events) - len(END)))
    return events.startswith(_ERROR_STARTS, 0 if before < 0 else before + len(END))


def error_at_end(events: bytes | bytearray) -> bytes | None:
    """The error JSON, when the last of these whole events is an error."""
    before = events.rfind(END, 0, max(0, len(events) - len(END)))
    return error_in(bytes(events[0 if before < 0 else before + len(END) :]))


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
    if not chunk.startswith(_ERROR_STARTS):
        return None
    return chunk.partition(END)[0].partition(_DATA)[2]


def error_event(path: str, body: bytes) -> bytes:
    """An error as the last event of a stream of the route with this path."""
    name = _NAMED_ERROR if path in ANTHROPIC_PATHS else b""
    return name + _DATA + body + END


class DataLine:
    """Takes the first line of data out of a stream's bytes, without making one piece of it.

    What is left is a stream, too. An error is no such line. Data is JSON, without an end of line.
    """

    def __init__(self) -> None:
        self._unfinished = b""
        self._begun = False
        self.ended = False
        """Whether all of the line came."""

    def split(self, chunk: bytes) -> tuple[bytes, bytes, bytes]:
        """The chunk in three parts: before the line, of the line, and after it."""
        if self.ended:
            return b"", b"", chunk
        before = b""
        if not self._begun:
            chunk, self._unfinished = self._unfinished + chunk, b""
            start = self._start_in(chunk)
            if not self._begun:
                self._unfinished = chunk[start:]
                return chunk[:start], b"", b""
            before, chunk = chunk[:start], chunk[start + len(_DATA) :]
        end = chunk.find(b"\n")
        if end < 0:
            return before, chunk, b""
        self.ended = True
        return before, chunk[:end], chunk[end + 1 :]

    def _start_in(self, text: bytes) -> int:
        """Where the line begins, or a line that may be it, or one that is not finished."""
        start = 0
        while True:
            line = text[start : start + len(ERROR_START)]
            if line.startswith(_DATA) and not ERROR_START.startswith(line) and line != ERROR_START:
                self._begun = True
                return start
            end = text.find(b"\n", start)
            if end < 0:
                return start
            start = end + 1
