"""Passes on strings of JSON from growing text, with what cannot stand in them escaped.

A quotation mark ends a string where what follows can only follow a string; otherwise it is text
that the model did not escape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final

from sluice_runtime.server.tools.source import Reading, Source, possible_start

QUOTES: Final = "\"'"
_LOOKAHEAD: Final = 256
"""Characters that decide what a quotation mark is; with so many it is the end, if nothing else."""
_TAIL: Final = 64
"""Commas and white space that are held back: before the next key they are no text."""
_PLAIN: Final = {quote: re.compile(rf"[^\\{quote}]*") for quote in QUOTES}
_SEPARATORS: Final = re.compile(rf"[,\s]{{0,{_TAIL}}}\Z")
_NAME: Final = re.compile(r"[\w.$-]*")
_KEY: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w.$-]+""", re.DOTALL)
_LOOSE_KEY: Final = re.compile(r"""["']?([\w.$-]+)["']?\s*:""")
_CALL_BEGINS: Final = re.compile(r"[^\"{]{0,100}\{\s*\Z")
_HEX: Final = re.compile(r"[0-9a-fA-F]*")
_DIGITS: Final = {"u": 4, "x": 2}
_REPLACEMENT: Final = r"\ufffd"
_ESCAPES: Final = str.maketrans(
    {chr(code): f"\\u{code:04x}" for code in range(0x20)}
    | {"\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r", '"': r"\""}
)


class Place(Enum):
    """Where a string stands."""

    KEY = "a key"
    VALUE = "an object's value"
    ITEM = "a list's item"


class _Mark(Enum):
    """What a quotation mark in a string is."""

    END = "its end"
    TEXT = "a part of it"
    NEXT_KEY = "the beginning of the next key: the end was left out"


class StringReader:
    """Reads strings; the arguments are those of `JsonReader`."""

    def __init__(
        self,
        source: Source,
        sink: Callable[[str], object],
        marks: tuple[str, ...],
        names: Collection[str],
    ) -> None:
        self._source = source
        self._sink = sink
        self._marks = marks
        self._names = names

    def read(self, place: Place) -> Reading[bool]:
        """Reads the string that comes next; returns whether it is complete."""
        quote = yield from self._source.peek()
        self._source.advance(1)
        self._sink('"')
        ended = yield from self._text(quote, place)
        if ended or not self._source.cut_here:
            self._sink('"')
            return True
        return False

    def ends_here(self, place: Place) -> Reading[bool]:
        """Whether a quotation mark comes next that may end a string."""
        character = yield from self._source.peek()
        if not character or character not in QUOTES:
            return False
        return (yield from self._kind(0, place, separated=False)) is _Mark.END

    def _text(self, quote: str, place: Place) -> Reading[bool]:
        """Passes on the text of a string; returns whether it ended before the source did."""
        trusted = 0  # characters in which marks are text
        while True:
            rest = self._source.rest()
            plain = _PLAIN[quote].match(rest)
            assert plain is not None, "it matches nothing, too"
            size = plain.end()
            mark = _first_of(self._marks, rest[:size], trusted)
            if mark is not None:
                self._pass(rest[:mark])
                ahead = yield from self._characters_to_end(quote, place)
                if ahead is None:
                    return True
                trusted = ahead
                continue
            if size == len(rest):
                held = 0 if self._source.ended else self._held(rest)
                self._pass(rest[: size - held])
                trusted = max(0, trusted - size + held)
                if self._source.ended:
                    return False
                yield
                continue
            trusted = max(0, trusted - size - 1)
            if rest[size] == "\\":
                self._pass(rest[:size])
                self._source.advance(1)
                self._sink((yield from self._escape()))
            elif (yield from self._quote(rest[:size], place)):
                return True

    def _held(self, text: str) -> int:
        """Characters at the end of the text that the next ones may turn into something else."""
        separators = _SEPARATORS.search(text)
        held = len(separators[0]) if separators and self._names else 0
        return max(held, possible_start(text, self._marks) if self._marks else 0)

    def _pass(self, text: str) -> None:
        if text:
            self._sink(text.translate(_ESCAPES))
            self._source.advance(len(text))

    def _quote(self, text: str, place: Place) -> Reading[bool]:
        """Passes on the text before a quotation mark; returns whether the string ends."""
        separators = _SEPARATORS.search(text)
        tail = len(separators[0]) if separators and self._names else 0
        self._pass(text[: len(text) - tail])
        kind = yield from self._kind(tail, place, separated=tail > 0)
        if kind is _Mark.NEXT_KEY:
            self._source.advance(tail)
            return True
        self._pass(text[len(text) - tail :])
        if kind is _Mark.TEXT:
            self._pass(self._source.rest()[:1])
            return False
        self._source.advance(1)
        return True

    def _kind(self, at: int, place: Place, *, separated: bool) -> Reading[_Mark]:
        """What the quotation mark is that comes after `at` characters."""
        while True:
            after = self._source.rest()[at + 1 : at + 1 + _LOOKAHEAD]
            final = self._source.ended or len(after) == _LOOKAHEAD
            kind = self._next_key(after, final=final) if separated else _Mark.TEXT
            if kind is _Mark.TEXT:
                kind = self._kind_before(after, place, final=final)
            if kind is not None:
                return kind
            yield

    def _next_key(self, after: str, *, final: bool) -> _Mark | None:
        """Whether a parameter's name is what follows; None: more text decides."""
        name = _NAME.match(after)
        assert name is not None, "it matches nothing, too"
        rest = after[name.end() :]
        if not rest or (rest[0] in QUOTES and not rest[1:].strip()):
            names = [known for known in self._names if known.startswith(name[0])]
            possible = name[0] in names if rest else bool(names)
            return None if possible and not final else _Mark.TEXT
        is_key = rest[0] in QUOTES and rest[1:].lstrip().startswith(":")
        return _Mark.NEXT_KEY if is_key and name[0] in self._names else _Mark.TEXT

    def _kind_before(self, after: str, place: Place, *, final: bool) -> _Mark | None:
        """What a quotation mark is by the text after it; None: more text decides."""
        if place is Place.KEY:
            return _Mark.END
        text = after.lstrip()
        undecided = _Mark.END if final else None
        if not text:
            return undecided
        if text[0] in "}])`" or text.startswith(("//", "/*", *self._marks)):
            return _Mark.END
        if text == "/" or any(mark.startswith(text) for mark in self._marks):
            return undecided
        if text[0] == ",":
            following = text[1:].lstrip()
            return _Mark.END if place is Place.ITEM else self._before_key(following, undecided)
        if text != after and text[0] in QUOTES:  # a comma is missing
            return _Mark.END if place is Place.ITEM else self._before_key(text, undecided)
        return _Mark.TEXT

    def _before_key(self, text: str, undecided: _Mark | None) -> _Mark | None:
        """Whether a key follows, or the object's end."""
        if not text:
            return undecided
        if text[0] in "}]),/#" or text.startswith(self._marks or ("}",)):
            return _Mark.END
        loose = _LOOSE_KEY.match(text)
        if loose is not None and loose[1] in self._names:
            return _Mark.END
        key = _KEY.match(text)
        if key is None:
            may_be = text[0] in QUOTES or any(mark.startswith(text) for mark in self._marks)
            return undecided if may_be else _Mark.TEXT
        colon = text[key.end() :].lstrip()
        if text[0] not in QUOTES:
            colon = colon.removeprefix('"')
        if not colon:
            return undecided
        return _Mark.END if colon[0] == ":" else _Mark.TEXT

    def _characters_to_end(self, quote: str, place: Place) -> Reading[int | None]:
        """Characters from a mark in a string to the quotation mark that ends it. None: it has no
        end, since the next call begins before, or the text ends."""
        at = 0
        while True:
            rest = self._source.rest()
            at += _end_of_plain(quote, rest, at)
            if at + 1 < len(rest) and rest[at] == "\\":
                at += 2
            elif at < len(rest) and rest[at] == quote:
                begins = _begins_call(rest[max(0, at - 200) : at], self._marks)
                while len(self._source.rest()) == at + 1 and not self._source.ended:
                    yield
                after = self._source.rest()[at + 1 : at + 2]
                if begins and (after.isalnum() or after == "_"):
                    return None
                if (yield from self._kind(at, place, separated=False)) is _Mark.END:
                    return at
                at += 1
            elif self._source.ended:
                return len(rest) if self._source.cut else None
            else:
                yield

    def _escape(self) -> Reading[str]:
        """Passes on what comes after a backslash, which is text itself where nothing fits it."""
        character = yield from self._source.peek()
        if not character:
            return "" if self._source.cut else r"\\"
        if character in '"\\/bfnrt':
            self._source.advance(1)
            return "\\" + character
        if character == "'":
            self._source.advance(1)
            return "'"
        if character not in _DIGITS:
            return r"\\"
        code = yield from self._code(0)
        if code is None:
            return "" if self._source.cut_after(1 + _DIGITS[character]) else r"\\"
        escape = self._source.rest()[: 1 + _DIGITS[character]]
        self._source.advance(len(escape))
        if character == "x":
            return f"\\u{code:04x}"
        if not 0xD800 <= code < 0xE000:
            return "\\" + escape
        return (yield from self._pair("\\" + escape, code))

    def _pair(self, escape: str, code: int) -> Reading[str]:
        """A pair of surrogates; half of one is no character."""
        if code < 0xDC00:
            while self._source.rest() in ("", "\\") and not self._source.ended:
                yield
            if self._source.rest().startswith("\\u"):
                low = yield from self._code(1)
                if low is not None and 0xDC00 <= low < 0xE000:
                    escape += self._source.rest()[:6]
                    self._source.advance(6)
                    return escape
        return "" if self._source.cut_here else _REPLACEMENT

    def _code(self, at: int) -> Reading[int | None]:
        """The number of an escape, of which the letter comes after `at` characters."""
        digits = _DIGITS[self._source.rest()[at]]
        while True:
            text = self._source.rest()[at + 1 : at + 1 + digits]
            match = _HEX.match(text)
            assert match is not None, "it matches nothing, too"
            if len(match[0]) == digits:
                return int(text, 16)
            if len(match[0]) < len(text) or self._source.ended:
                return None
            yield


def _first_of(marks: tuple[str, ...], text: str, start: int) -> int | None:
    places = [place for mark in marks if (place := text.find(mark, start)) >= 0]
    return min(places, default=None)


def _end_of_plain(quote: str, text: str, at: int) -> int:
    plain = _PLAIN[quote].match(text, at)
    assert plain is not None, "it matches nothing, too"
    return plain.end() - at


def _begins_call(text: str, marks: tuple[str, ...]) -> bool:
    """Whether the text, up to a quotation mark, begins another call."""
    mark = max(marks, key=text.rfind)
    at = text.rfind(mark)
    return at >= 0 and _CALL_BEGINS.fullmatch(text, at + len(mark)) is not None
