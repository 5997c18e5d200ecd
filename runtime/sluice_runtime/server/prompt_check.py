"""Finds the texts of a conversation that a rendered prompt lacks.

It searches the prompt for each text and needs no knowledge of the template. If another text of the
conversation contains the one in question, it still finds that the prompt lacks it; if the
template's own words contain it, it does not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

MAX_CHARACTERS: Final = 1 << 26
"""Most characters to search for one request, over all attempts to render it; texts not searched by
then count as found."""
TEXT_CHARACTERS: Final = 4_096
"""Fixed cost of each text, in characters, in addition to the characters searched."""
_CHECKED_TOOLS: Final = 16
CALLS: Final = "calls"


@dataclass(frozen=True)
class _Text:
    kind: str
    """The role of its turn, or `calls`."""
    spellings: tuple[str, ...]
    """How the prompt may spell the text: unchanged, or as a JSON string."""
    is_argument: bool = False
    """Whether the text is part of a call's arguments, which a template may write in any order."""


class PromptCheck:
    """Searches prompts for the texts of one conversation, at most `MAX_CHARACTERS` in all."""

    def __init__(self, turns: Sequence[Mapping[str, Any]], reasoning_end: str) -> None:
        """`reasoning_end`: the marker that ends reasoning in an assistant's content; may be
        empty."""
        self._left = MAX_CHARACTERS
        self._turns: list[list[_Text]] = []
        for turn in turns:
            texts: list[_Text] = []
            self._turns.append(texts)
            for text in _texts_of(turn, reasoning_end):
                self._left -= TEXT_CHARACTERS + len(text.spellings[0])
                if self.spent:
                    return
                texts.append(text)

    @property
    def spent(self) -> bool:
        """Whether the limit is reached, so that nothing more is searched."""
        return self._left <= 0

    def unseen(self, prompt: str) -> list[str]:
        """Kinds of the texts that the prompt lacks: the role of a turn, or `calls`.

        White space around a text and the assistant's reasoning are not searched for."""
        if self.spent or self._in_order(prompt):
            return []
        texts = [text for turn in self._turns for text in turn]
        whole = "\0".join(text.spellings[0] for text in texts)
        return [text.kind for text in texts if not self._has(prompt, text, whole)]

    def shows_tools(
        self, prompt: str, tools: Sequence[Mapping[str, Any]], *, calls_shown: bool
    ) -> bool:
        """Whether the prompt has each tool's name more often than the conversation itself.
        `calls_shown`: whether the prompt has the conversation's calls."""
        whole = "\0".join(
            text.spellings[0]
            for turn in self._turns
            for text in turn
            if calls_shown or text.kind != CALLS
        )
        names = [str(tool["function"]["name"]) for tool in tools[:_CHECKED_TOOLS]]
        return all(self._count(prompt, name) > whole.count(name) for name in names)

    def _in_order(self, prompt: str) -> bool:
        """Whether the prompt has the turns' texts in their order; system texts may be anywhere."""
        cursor = 0
        for turn in self._turns:
            begin = cursor
            for text in turn:
                system = text.kind in ("system", "developer")
                start = 0 if system else begin if text.is_argument else cursor
                end = self._end(prompt, text, start)
                if self.spent:
                    return True
                if end < 0:
                    return False
                if not (system or text.is_argument):
                    cursor = end
        return True

    def _end(self, prompt: str, text: _Text, start: int) -> int:
        """End of the text in the prompt, of the spelling that ends first after `start`; -1 if the
        prompt has none."""
        ends = []
        for spelling in text.spellings:
            at = prompt.find(spelling, start)
            self._left -= (len(prompt) if at < 0 else at) - start + len(spelling)
            if at >= 0:
                ends.append(at + len(spelling))
        return min(ends, default=-1)

    def _count(self, prompt: str, spelling: str) -> int:
        self._left -= len(prompt)
        return prompt.count(spelling)

    def _has(self, prompt: str, text: _Text, whole: str) -> bool:
        """Whether the prompt has the text at least as often as `whole`, the conversation's texts.
        An argument need only be there once."""
        if self.spent:
            return True
        if text.is_argument:
            return self._end(prompt, text, 0) >= 0
        self._left -= len(whole)
        return any(
            self._count(prompt, spelling) >= max(1, whole.count(spelling))
            for spelling in text.spellings
        )


def kinds_of(turns: Sequence[Mapping[str, Any]]) -> set[str]:
    """The kinds of text that a conversation has."""
    spoken = {turn["role"] for turn in turns if not str(turn["content"] or " ").isspace()}
    return spoken | {CALLS for turn in turns if turn.get("tool_calls")}


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
    """The names, strings and numbers in a call's arguments. Not true, false and null, which
    templates spell in different ways."""
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
