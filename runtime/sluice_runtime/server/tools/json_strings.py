"""Passes on JSON strings from growing text, and escapes characters that JSON strings cannot
contain.

A quotation mark ends a string if the text after it can only follow a string. Otherwise it is text
that the model did not escape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from enum import Enum
from typing import Final

from sluice_runtime.server.tools.source import CallSource, Lookahead, Reading, any_of

QUOTES: Final = "\"'"
_LOOKAHEAD: Final = 256
"""Most characters after a quotation mark that are looked at; if they do not decide, the mark ends
the string."""
_TAIL: Final = 64
"""Most commas and white space that are held back, because before a next key they are not text."""
_STOPS: Final = {quote: ("\\", quote) for quote in QUOTES}
_SEPARATORS: Final = re.compile(rf"[,\s]{{0,{_TAIL}}}\Z")
_NAME: Final = re.compile(r"[\w.$-]*")
_KEY: Final = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[\w.$-]+""", re.DOTALL)
_LOOSE_KEY: Final = re.compile(r"""["']?([\w.$-]+)["']?\s*:""")
_CALL_CHARACTERS: Final = 200
"""Characters before a quotation mark that are searched for the beginning of a call."""
_CALL_BEGINS: Final = re.compile(r"[^\"{]{0,100}\{\s*\Z")
_HEX: Final = re.compile(r"[0-9a-fA-F]*")
_LONGEST_ESCAPE: Final = 8
"""More characters than an escape has after its backslash, or than the second half of a surrogate
pair has."""
_CUT_ESCAPE: Final = re.compile(r"[ux][0-9a-fA-F]*")
_CUT_PAIR: Final = re.compile(r"(\\(u([dD]([c-fC-F][0-9a-fA-F]?)?)?)?)?")
"""Pattern of the second half of a surrogate pair, complete or cut off."""
_BRACKET: Final = re.compile(r"[{}\[\]]")
_CLOSERS: Final = re.compile(r"(\s*[}\]])*\s*")
_DIGITS: Final = {"u": 4, "x": 2}
_REPLACEMENT: Final = r"\ufffd"
_ESCAPES: Final = str.maketrans(
    {chr(code): f"\\u{code:04x}" for code in range(0x20)}
    | {"\b": r"\b", "\t": r"\t", "\n": r"\n", "\f": r"\f", "\r": r"\r", '"': r"\""}
)


class Place(Enum):
    """Position of a string in JSON."""

    KEY = "a key"
    VALUE = "an object's value"
    ITEM = "a list's item"


class _Mark(Enum):
    """Meaning of a quotation mark in a string."""

    END = "its end"
    TEXT = "a part of it"
    NEXT_KEY = "the beginning of the next key: the end was left out"


class StringReader:
    """Reads strings. Arguments as for `JsonReader`."""

    def __init__(
        self,
        source: CallSource,
        sink: Callable[[str], object],
        marks: tuple[str, ...],
        names: Collection[str],
    ) -> None:
        self._source = source
        self._sink = sink
        self._marks = marks
        self._names = names
        self._inner = InnerJson()

    def read(self, place: Place) -> Reading[bool]:
        """Reads the string that comes next; returns whether it is complete."""
        quote = yield from self._source.peek()
        self._source.advance(1)
        self._sink('"')
        self._inner = InnerJson()
        ended = yield from self._text(quote, place)
        if ended or not self._source.cut_here:
            self._sink('"')
            return True
        return False

    def ends_here(self, place: Place) -> Reading[bool]:
        """Whether the next character is a quotation mark that may end a string."""
        character = yield from self._source.peek()
        if not character or character not in QUOTES:
            return False
        return (yield from self._kind(0, place, separated=False)) is _Mark.END

    def _text(self, quote: str, place: Place) -> Reading[bool]:
        """Passes on the text of a string; returns whether it ended before the source did."""
        source = self._source
        plain = any_of(_STOPS[quote])
        plain_or_mark = any_of((*_STOPS[quote], *self._marks))
        trusted = 0  # position up to which quotation marks are known to be text
        while True:
            stop = source.find(plain if source.position < trusted else plain_or_mark)
            if stop is None:
                self._pass(source.available - self._held())
                if source.ended:
                    return False
                yield
            elif stop[1] == "\\":
                self._pass(stop[0])
                source.advance(1)
                self._inner.pass_text("\\")
                self._sink((yield from self._escape()))
            elif stop[1] == quote:
                if (yield from self._quote(stop[0], place)):
                    return True
            else:
                self._pass(stop[0])
                end = yield from self._end(quote, place)
                if end is None:
                    return True
                trusted = end

    def _held(self) -> int:
        """Number of characters at the end of the text whose meaning depends on what follows."""
        if self._source.ended:
            return 0
        return max(
            self._separators(self._source.available), self._source.possible_start(self._marks)
        )

    def _separators(self, size: int) -> int:
        """Number of characters at the end of the next `size` that are separators, not text, if a
        key follows."""
        if not self._names:
            return 0
        tail = self._source.ahead(min(size, _TAIL), max(0, size - _TAIL))
        separators = _SEPARATORS.search(tail)
        return len(separators[0]) if separators else 0

    def _pass(self, size: int) -> None:
        if size:
            text = self._source.ahead(size)
            self._inner.pass_text(text)
            self._sink(text.translate(_ESCAPES))
            self._source.advance(size)

    def _quote(self, size: int, place: Place) -> Reading[bool]:
        """Passes on the `size` characters before a quotation mark; returns whether the mark ends
        the string."""
        tail = self._separators(size)
        self._pass(size - tail)
        kind = yield from self._kind(tail, place, separated=tail > 0, inner=self._inner)
        if kind is _Mark.NEXT_KEY:
            self._source.advance(tail)
            return True
        self._pass(tail)
        if kind is _Mark.TEXT:
            self._inner.pass_quote(self._source.ahead(_LOOKAHEAD, 1))
            self._pass(1)
            return False
        self._source.advance(1)
        return True

    def _kind(
        self, at: int, place: Place, *, separated: bool, inner: InnerJson | None = None
    ) -> Reading[_Mark]:
        """Meaning of the quotation mark that comes after `at` characters. `inner`: the JSON that
        the string is known to contain."""
        while True:
            after = self._source.ahead(_LOOKAHEAD, at + 1)
            final = self._source.ended or len(after) == _LOOKAHEAD
            kind = self._next_key(after, final=final) if separated else _Mark.TEXT
            if kind is _Mark.TEXT:
                kind = self._kind_before(after, place, final=final)
            if kind is _Mark.END and inner is not None and inner.is_open:
                kind = self._kind_within(after, place, final=final, is_sure=inner.is_sure)
            if kind is not None:
                return kind
            yield

    def _next_key(self, after: str, *, final: bool) -> _Mark | None:
        """Meaning of a quotation mark by whether a parameter's name follows; None: more text is
        needed."""
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
        """Meaning of a quotation mark by the text after it; None: more text is needed."""
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
        if text != after and text[0] in QUOTES:  # the model left out a comma
            return _Mark.END if place is Place.ITEM else self._before_key(text, undecided)
        return _Mark.TEXT

    def _before_key(self, text: str, undecided: _Mark | None) -> _Mark | None:
        """Meaning of a quotation mark before `text`: the end if a key or the object's end
        follows."""
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

    def _kind_within(self, after: str, place: Place, *, final: bool, is_sure: bool) -> _Mark | None:
        """Meaning of a quotation mark inside JSON that the string contains: text, unless the call's
        arguments continue after it. `is_sure`: whether the string certainly contains JSON."""
        closers = _CLOSERS.match(after)
        assert closers is not None, "it matches nothing, too"
        text, closed = after[closers.end() :], bool(closers[0].strip())
        undecided = _Mark.END if final else None
        if not text:
            return undecided
        if closed and text[0] in QUOTES:
            return _Mark.TEXT
        following = text[1:].lstrip()
        key = _KEY.match(following) if text[0] == "," else None
        colon = following[key.end() :].lstrip() if key else ""
        if text[0] == "," and not colon:
            return undecided if key or following[:1] in ("", *QUOTES) else _Mark.END
        if key is None or colon[0] != ":" or not (closed or is_sure):
            return _Mark.END
        is_next = place is Place.VALUE and key[0].strip(QUOTES) in self._names
        return _Mark.TEXT if is_next == closed and (is_next or not closed) else _Mark.END

    def _end(self, quote: str, place: Place) -> Reading[int | None]:
        """Position of the quotation mark that ends the present string. None: the next call begins
        first, or the text ends."""
        source, begin = self._source, self._source.position
        kind = (quote, place, id(self._names))
        known = source.lookaheads.get(kind)
        if known is not None and known.begin <= begin <= known.reached:
            return known.end
        end = yield from self._search_end(quote, place)
        source.lookaheads[kind] = Lookahead(begin, source.position, end)
        source.go_back(begin)
        return end

    def _search_end(self, quote: str, place: Place) -> Reading[int | None]:
        """Searches for the position that `_end` returns."""
        source, begin = self._source, self._source.position
        stops = any_of(_STOPS[quote])
        while True:
            stop = source.find(stops)
            source.advance(source.available if stop is None else stop[0])
            if stop is None:
                if source.ended:
                    return source.position if source.cut else None
                yield
                continue
            while source.available == 1 and not source.ended:
                yield
            if stop[1] == quote:
                before = source.behind(min(_CALL_CHARACTERS, source.position - begin))
                after = source.ahead(1, 1)
                if _begins_call(before, self._marks) and (after.isalnum() or after == "_"):
                    return None
                if (yield from self._kind(0, place, separated=False)) is _Mark.END:
                    return source.position
                source.advance(1)
            else:
                source.advance(min(2, source.available))

    def _escape(self) -> Reading[str]:
        """Passes on an escape, whose backslash was read. If it is not a valid escape, the backslash
        is text."""
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
            return "" if self._drop_cut(_CUT_ESCAPE) else r"\\"
        escape = self._source.ahead(1 + _DIGITS[character])
        self._source.advance(len(escape))
        if character == "x":
            return f"\\u{code:04x}"
        if not 0xD800 <= code < 0xE000:
            return "\\" + escape
        return (yield from self._pair("\\" + escape, code))

    def _pair(self, escape: str, code: int) -> Reading[str]:
        """A pair of surrogates; half a pair becomes the replacement character."""
        if code < 0xDC00:
            while self._source.ahead(2) in ("", "\\") and not self._source.ended:
                yield
            if self._source.ahead(2) == "\\u":
                low = yield from self._code(1)
                if low is not None and 0xDC00 <= low < 0xE000:
                    escape += self._source.ahead(6)
                    self._source.advance(6)
                    return escape
            if self._drop_cut(_CUT_PAIR):
                return ""
        return _REPLACEMENT

    def _code(self, at: int) -> Reading[int | None]:
        """Code of an escape whose letter comes after `at` characters; None: it is not complete or
        not valid."""
        digits = _DIGITS[self._source.ahead(1, at)]
        while True:
            text = self._source.ahead(digits, at + 1)
            match = _HEX.match(text)
            assert match is not None, "it matches nothing, too"
            if len(match[0]) == digits:
                return int(text, 16)
            if len(match[0]) < len(text) or self._source.ended:
                return None
            yield

    def _drop_cut(self, pattern: re.Pattern[str]) -> bool:
        """Drops the rest of the text if it is a cut-off escape; returns whether it was."""
        rest = self._source.ahead(_LONGEST_ESCAPE)
        cut = self._source.cut and self._source.available == len(rest)
        if not (cut and pattern.fullmatch(rest)):
            return False
        self._source.advance(len(rest))
        return True


class InnerJson:
    """JSON that a string contains and whose quotation marks the model did not escape."""

    def __init__(self) -> None:
        self._depth = 0
        self._opener = ""
        """The bracket before a quotation mark that may be the first in such JSON."""
        self._last = ""

    @property
    def is_open(self) -> bool:
        """Whether a bracket of the JSON is still open."""
        return self.is_sure or self._opener == "["

    @property
    def is_sure(self) -> bool:
        """Whether an open bracket was followed by a key or an item, so that it is certainly
        JSON."""
        return self._depth > 0

    def pass_text(self, text: str) -> None:
        """Counts the brackets of text that belongs to the string."""
        for bracket in _BRACKET.findall(text) if self._depth else ():
            self._depth += 1 if bracket in "{[" else -1
            if not self._depth:
                break
        self._last = text.rstrip()[-1:] or self._last

    def pass_quote(self, after: str) -> None:
        """Records a quotation mark that is text; `after`: the text after it."""
        if self._depth:
            return
        follows = after.lstrip()[:1]
        if (self._opener == "{" and follows == ":") or (
            self._opener == "[" and follows in (",", "]")
        ):
            self._depth = 1
        self._opener = self._last if self._last in ("{", "[") and not self._depth else ""


def _begins_call(text: str, marks: tuple[str, ...]) -> bool:
    """Whether `text`, which ends before a quotation mark, ends with the beginning of another
    call."""
    mark = max(marks, key=text.rfind)
    at = text.rfind(mark)
    return at >= 0 and _CALL_BEGINS.fullmatch(text, at + len(mark)) is not None
