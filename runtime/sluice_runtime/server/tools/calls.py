"""Finds tool calls in growing text; what is no call stays text. Pure, and knows no tokens.

A call is told when it is complete. White space around calls is nobody's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sluice_runtime.server.tools.formats import ToolFormat


@dataclass(frozen=True)
class ToolCall:
    """One call of an answer."""

    index: int
    """Number of the call in its choice."""
    call_id: str
    name: str
    arguments: str
    """A JSON object, as text."""


class Parsed(NamedTuple):
    """What a piece of text came to."""

    text: str
    calls: tuple[ToolCall, ...] = ()


class CallParser:
    """The calls of one choice."""

    def __init__(self, form: ToolFormat, draw_id: Callable[[], str]) -> None:
        self._form = form
        self._draw_id = draw_id
        self._held = ""
        """Outside a call: text that may be the start of one. Inside: the call's, up to now."""
        self._inside = False
        self._searched = 0
        """Characters of an open call in which its end has been looked for."""
        self.calls = 0

    def push(self, text: str) -> Parsed:
        """The text that is certain to be none of a call's, and the calls that are complete now."""
        self._held += text
        texts: list[str] = []
        calls: list[ToolCall] = []
        while self._close(texts, calls) if self._inside else self._open(texts):
            pass
        return Parsed("".join(texts), tuple(calls))

    def finish(self) -> Parsed:
        """What was held back. A last call may lack its closing tag."""
        held, self._held = self._held, ""
        if not self._inside:
            return Parsed("" if self.calls and held.isspace() else held)
        self._inside = False
        call = self._call(_object(held))
        return Parsed("", (call,)) if call else Parsed(self._form.opening + held)

    def _open(self, texts: list[str]) -> bool:
        """Up to the next opening tag; False when there is none yet."""
        before, tag, after = self._held.partition(self._form.opening)
        if tag:
            self._held, self._inside, self._searched = after, True, 0
            texts.append(before.rstrip())
            return True
        certain = len(self._held) - self._possible_start()
        texts.append(self._held[:certain])
        self._held = self._held[certain:]
        return False

    def _close(self, texts: list[str], calls: list[ToolCall]) -> bool:
        """Up to the end of the open call; False when it is not there yet."""
        closing = self._form.closing
        at = self._held.find(closing, max(0, self._searched - len(closing)))
        if at < 0:
            self._searched = len(self._held)
            return False
        body = self._held[:at]
        try:
            value = json.loads(body)
        except RecursionError:
            value = None
        except json.JSONDecodeError as error:
            if error.msg.startswith("Unterminated string"):  # the tag is part of an argument
                self._searched = at + 2 * len(closing)
                return self._held.find(closing, at + len(closing)) >= 0
            value = None
        self._held, self._inside = self._held[at + len(closing) :], False
        if call := self._call(value):
            calls.append(call)
        else:
            texts.append(self._form.opening + body + closing)
        return True

    def _call(self, value: Any) -> ToolCall | None:
        """The call that a JSON value is, if it is one."""
        if not (isinstance(value, dict) and isinstance(value.get("name"), str)):
            return None
        arguments = value.get("arguments", {})
        if not isinstance(arguments, dict):
            return None
        text = json.dumps(arguments, ensure_ascii=False)
        call = ToolCall(self.calls, self._draw_id(), value["name"], text)
        self.calls += 1
        return call

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that may belong to a call."""
        opening, held = self._form.opening, self._held
        longest = min(len(held), len(opening) - 1)
        partial = next((n for n in range(longest, 0, -1) if opening.startswith(held[-n:])), 0)
        return len(held) - len(held[: len(held) - partial].rstrip())


def _object(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
