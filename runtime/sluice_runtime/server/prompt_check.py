"""Which texts of a conversation a rendered prompt does not have.

Knows no template: it looks for the texts in the prompt. A text that the template's own words or
another text happen to contain is missed only where the template's words contain it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_MAX_SCANNED_CHARACTERS: Final = 1 << 26
"""What is searched for one prompt, some 50 ms; texts beyond count as shown."""
_CHECKED_TOOLS: Final = 16
CALLS: Final = "calls"


@dataclass(frozen=True)
class _Text:
    kind: str
    """The role of its turn, or `calls`."""
    spellings: tuple[str, ...]
    """As it is, and as a JSON string."""
    is_argument: bool = False
    """Whether it is within a call's arguments, which may stand in any order."""


def unseen(prompt: str, turns: Sequence[Mapping[str, Any]], reasoning_end: str) -> list[str]:
    """Kinds of the texts that are not in the prompt: the role of a turn, or `calls`.

    White space around a text is no part of it, nor is reasoning of the assistant, which ends with
    `reasoning_end`."""
    texts = [list(_texts_of(turn, reasoning_end)) for turn in turns]
    scan = _Scan(prompt)
    if _in_order(scan, texts):
        return []
    whole = "\0".join(text.spellings[0] for turn in texts for text in turn)
    return [text.kind for turn in texts for text in turn if not scan.has(text, whole)]


def kinds_of(turns: Sequence[Mapping[str, Any]]) -> set[str]:
    """Kinds of the texts of a conversation."""
    return {text.kind for turn in turns for text in _texts_of(turn, "")}


def shows_tools(
    prompt: str, turns: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> bool:
    """Whether the prompt has each tool's name, besides where the conversation has it."""
    scan = _Scan(prompt)
    texts = [text.spellings[0] for turn in turns for text in _texts_of(turn, "")]
    whole = "\0".join(texts)
    names = [str(tool["function"]["name"]) for tool in tools[:_CHECKED_TOOLS]]
    return all(scan.count(name) > whole.count(name) for name in names)


class _Scan:
    """Searches a prompt, up to a bound."""

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt
        self._left = _MAX_SCANNED_CHARACTERS

    @property
    def spent(self) -> bool:
        return self._left <= 0

    def end(self, text: _Text, start: int) -> int:
        """Where the first spelling ends that comes behind `start`; -1: nowhere."""
        ends = []
        for spelling in text.spellings:
            at = self._prompt.find(spelling, start)
            self._left -= (len(self._prompt) if at < 0 else at) - start
            if at >= 0:
                ends.append(at + len(spelling))
        return min(ends, default=-1)

    def count(self, spelling: str) -> int:
        self._left -= len(self._prompt)
        return self._prompt.count(spelling)

    def has(self, text: _Text, whole: str) -> bool:
        """Whether the prompt has the text as often as the conversation, which is `whole`."""
        if self.spent:
            return True
        if text.is_argument:
            return self.end(text, 0) >= 0
        self._left -= len(whole)
        return any(
            self.count(spelling) >= max(1, whole.count(spelling)) for spelling in text.spellings
        )


def _in_order(scan: _Scan, texts: Sequence[Sequence[_Text]]) -> bool:
    """Whether the turns' texts follow one another in the prompt; system texts stand anywhere."""
    cursor = 0
    for turn in texts:
        begin = cursor
        for text in turn:
            system = text.kind in ("system", "developer")
            start = 0 if system else begin if text.is_argument else cursor
            end = scan.end(text, start)
            if end < 0 or scan.spent:
                return False
            if not (system or text.is_argument):
                cursor = end
    return True


def _texts_of(turn: Mapping[str, Any], reasoning_end: str) -> Iterator[_Text]:
    content = str(turn["content"])
    if turn["role"] == "assistant" and reasoning_end:
        content = content.rpartition(reasoning_end)[2]
    if content := content.strip():
        yield _text(turn["role"], content)
    for call in turn.get("tool_calls", ()):
        yield _text(CALLS, call["function"]["name"])
        yield from _leaves(call["function"]["arguments"])


def _leaves(value: object) -> Iterator[_Text]:
    """The names and values within a call's arguments; the simple ones are spelled in many ways."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _leaves(name)
            yield from _leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part)
    elif isinstance(value, str):
        if stripped := value.strip():
            yield _text(CALLS, stripped, is_argument=True)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield _Text(CALLS, (json.dumps(value),), is_argument=True)


def _text(kind: str, text: str, *, is_argument: bool = False) -> _Text:
    escaped = [json.dumps(text, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True)]
    return _Text(kind, tuple(dict.fromkeys([text, *escaped])), is_argument)
