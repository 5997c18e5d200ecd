"""Finds tool calls in growing text; what is no call stays text. Pure, and knows no tokens.

A call's name is told when it is complete, and its arguments as they come. White space around calls
is nobody's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from sluice_runtime.server.tools.source import Source


@dataclass(frozen=True)
class CallPart:
    """The next part of one call of an answer."""

    index: int
    """Number of the call in its choice."""
    arguments: str = ""
    """A JSON object, as text; of an answer that was cut, the beginning of one."""
    call_id: str | None = None
    name: str | None = None
    """Set, as `call_id`, on a call's first part and on no other."""


class Parsed(NamedTuple):
    """What a piece of text came to."""

    text: str
    calls: tuple[CallPart, ...] = ()


class Calls:
    """Where a reader puts what it finds."""

    def __init__(self, schemas: Mapping[str, Any], draw_id: Callable[[], str]) -> None:
        self.schemas = schemas
        """Of the arguments of each function that was offered."""
        self.begun = 0
        self._draw_id = draw_id
        self._texts: list[str] = []
        self._parts: list[CallPart] = []

    def text(self, text: str) -> None:
        """Text that is no call's."""
        self._texts.append(text)

    def begin(self, name: str) -> None:
        """One call more."""
        self._parts.append(CallPart(self.begun, "", self._draw_id(), name))
        self.begun += 1

    def arguments(self, text: str) -> None:
        """More of the last call's arguments."""
        if text:
            self._parts.append(CallPart(self.begun - 1, text))

    def taken(self) -> Parsed:
        """What was put here since the last time."""
        parsed = Parsed("".join(self._texts), whole_calls(self._parts))
        self._texts, self._parts = [], []
        return parsed


def whole_calls(parts: Iterable[CallPart]) -> tuple[CallPart, ...]:
    """Parts of the same call as one."""
    calls: dict[int, CallPart] = {}
    arguments: dict[int, list[str]] = {}
    for part in parts:
        calls.setdefault(part.index, part)
        arguments.setdefault(part.index, []).append(part.arguments)
    return tuple(
        replace(call, arguments="".join(arguments[index])) for index, call in calls.items()
    )


class Reader(Protocol):
    """Reads a source to its end, and puts what it finds into calls."""

    def __call__(self, source: Source, calls: Calls) -> Generator[None, None, None]: ...


class CallParser:
    """The calls of one choice. `imposed`: the answer is held to calls, and so has no text."""

    def __init__(
        self,
        read: Reader,
        schemas: Mapping[str, Any],
        draw_id: Callable[[], str],
        *,
        imposed: bool = False,
    ) -> None:
        self._source = Source()
        self._found = Calls(schemas, draw_id)
        self._reading = read(self._source, self._found)
        self._imposed = imposed

    @property
    def calls(self) -> int:
        """How many have begun."""
        return self._found.begun

    def push(self, text: str) -> Parsed:
        """The text that is certain to be none of a call's, and what is told of calls now."""
        self._source.add(text)
        return self._read_on()

    def finish(self) -> Parsed:
        """What was held back."""
        self._source.ended = True
        parsed = self._read_on()
        rest = self._source.rest()
        if self._imposed or (self.calls and rest.isspace()):
            return parsed
        return parsed._replace(text=parsed.text + rest)

    def _read_on(self) -> Parsed:
        next(self._reading, None)
        parsed = self._found.taken()
        return parsed._replace(text="") if self._imposed else parsed
