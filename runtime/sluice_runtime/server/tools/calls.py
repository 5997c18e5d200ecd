"""Parses tool calls from growing text; everything else stays text.

A call's name is passed on once it is complete, its arguments as they arrive. White space around
calls is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Protocol

from sluice_runtime.server.tools.source import CallSource

MAX_NAME_CHARACTERS: Final = 128
"""Longest name of a function; a longer name is taken for text."""
_NO_PARAMETERS: Final[Mapping[str, Any]] = {}


@dataclass(frozen=True)
class CallPart:
    """The next part of one call of an answer."""

    index: int
    """Number of the call in its choice."""
    arguments: str = ""
    """JSON text of the arguments, an object; incomplete only if the answer was cut off."""
    call_id: str | None = None
    name: str | None = None
    """Set, like `call_id`, only on a call's first part."""
    text_before: int = 0
    """Characters of its piece's text that were generated before it."""


class Parsed(NamedTuple):
    """The text and the calls found in a piece."""

    text: str
    calls: tuple[CallPart, ...] = ()


class Calls:
    """Collects the text and calls that a reader finds."""

    def __init__(self, schemas: Mapping[str, Any], draw_id: Callable[[], str]) -> None:
        self.schemas = schemas
        """Schema of the arguments, by function."""
        self.begun = 0
        self.open = False
        """Whether the last call's arguments are incomplete."""
        self._has_text = False
        self._draw_id = draw_id
        self._texts: list[str] = []
        self._characters = 0
        """Length of the texts."""
        self._parts: list[CallPart] = []

    def text(self, text: str) -> None:
        """Adds text outside calls."""
        if self.begun and not self._has_text:
            text = text.lstrip()
        self._has_text = self._has_text or bool(text)
        self._texts.append(text)
        self._characters += len(text)

    def begin(self, name: str) -> None:
        """Begins the next call."""
        id_ = self._draw_id()
        self._parts.append(CallPart(self.begun, "", id_, name, self._characters))
        self.begun += 1
        self.open = True

    def end(self) -> None:
        """Ends the last call's arguments."""
        self.open = False

    def add(self, name: str, arguments: str) -> None:
        """Adds a whole call."""
        self.begin(name)
        self.arguments(arguments)
        self.end()

    def parameters(self, name: str) -> Mapping[str, Any]:
        """Known schemas of a function's parameters, by name."""
        schema = self.schemas.get(name)
        properties = schema.get("properties") if isinstance(schema, Mapping) else None
        return properties if isinstance(properties, Mapping) else _NO_PARAMETERS

    def arguments(self, text: str) -> None:
        """Adds to the last call's arguments."""
        if text:
            self._parts.append(CallPart(self.begun - 1, text))

    def taken(self) -> Parsed:
        """Returns and forgets what was collected."""
        parsed = Parsed("".join(self._texts), whole_calls(self._parts))
        self._texts, self._parts, self._characters = [], [], 0
        return parsed


def whole_calls(parts: Iterable[CallPart]) -> tuple[CallPart, ...]:
    """Joins the parts of each call."""
    calls: dict[int, CallPart] = {}
    arguments: dict[int, list[str]] = {}
    for part in parts:
        calls.setdefault(part.index, part)
        arguments.setdefault(part.index, []).append(part.arguments)
    return tuple(
        replace(call, arguments="".join(arguments[index])) for index, call in calls.items()
    )


class CallReader(Protocol):
    """Reads a source to its end and reports what it finds to `calls`."""

    def __call__(self, source: CallSource, calls: Calls) -> Generator[None, None, None]: ...


class CallParser:
    """Parses one choice. `calls_only`: a grammar allows only calls, so there is no text.
    `max_calls`: later calls are dropped, because the chat template could not show them to the model
    again."""

    def __init__(
        self,
        read: CallReader,
        schemas: Mapping[str, Any],
        draw_id: Callable[[], str],
        *,
        calls_only: bool = False,
        max_calls: int | None = None,
    ) -> None:
        self._max_calls = max_calls
        self._source = CallSource()
        self._collected = Calls(schemas, draw_id)
        self._reading = read(self._source, self._collected)
        self._calls_only = calls_only

    @property
    def calls(self) -> int:
        """How many calls have begun."""
        return self._collected.begun

    @property
    def open(self) -> bool:
        """Whether the last call's arguments are incomplete."""
        return self._collected.open

    def push(self, text: str) -> Parsed:
        """Adds text; returns text that is certainly outside calls, and parts of calls."""
        self._source.add(text)
        return self._read_on()

    def finish(self, text: str = "", *, cut: bool = False) -> Parsed:
        """Adds the last text; returns also what was held back until the end. `cut`: the model was
        cut off, so incomplete arguments stay incomplete; otherwise a call's arguments are
        completed."""
        self._source.add(text)
        self._source.ended, self._source.cut = True, cut
        parsed = self._read_on()
        rest = self._source.rest()
        if self._calls_only or (self.calls and rest.isspace()):
            return parsed
        return parsed._replace(text=parsed.text + rest)

    def _read_on(self) -> Parsed:
        next(self._reading, None)
        parsed = self._collected.taken()
        if self._max_calls is not None:
            calls = tuple([call for call in parsed.calls if call.index < self._max_calls])
            parsed = parsed._replace(calls=calls)
        return parsed._replace(text="") if self._calls_only else parsed
