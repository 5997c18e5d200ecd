"""Passes on JSON from growing text, and repairs what a model wrote incorrectly.

Valid JSON is unchanged. In other text, missing parts are added where the structure is clear; parts
that JSON cannot contain are escaped, quoted or left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

from sluice_runtime.server.tools.json_strings import QUOTES, Place, StringReader
from sluice_runtime.server.tools.source import CallSource, Reading

MAX_DEPTH: Final = 100
"""Deeper values become null, since many parsers refuse them."""
_CLOSERS: Final = {"{": "}", "[": "]", "(": ")"}
"""Closing bracket of each opening one; Python's tuples become lists."""
_ENDS: Final = frozenset(_CLOSERS.values())
_SPACE: Final = " \t\r\n"
_LITERALS: Final = {
    **{word: word for word in ("true", "false", "null")},
    "True": "true",
    "False": "false",
    **dict.fromkeys(("None", "undefined", "NaN", "Infinity", "-Infinity"), "null"),
}
"""Words of Python and JavaScript, which models use, and numbers that JSON does not have."""
_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_KEY_CHARACTERS: Final = 256
_BRACKETS: Final = re.compile(r'["{}\[\]]')
_IN_STRING: Final = re.compile(r'["\\]')
_LOOSE_NUMBER: Final = re.compile(r"\+?(-?)([1-9][0-9]*|0)?(\.[0-9]*)?([eE][+-]?[0-9]+)?")


class JsonReader:
    """Reads one value and passes it on as it arrives.

    `marks`: texts that begin or end calls; outside a string they end the value. `names`: the call's
    parameters, by which a string's end is recognised before the next parameter.
    """

    def __init__(
        self,
        source: CallSource,
        sink: Callable[[str], object],
        marks: tuple[str, ...] = (),
        names: Collection[str] = (),
    ) -> None:
        self._source = source
        self._sink = sink
        self._marks = marks
        self._strings = StringReader(source, sink, marks, names)
        self._open: list[str] = []
        """The closing brackets that are missing here."""

    def read(self, closer: str = "") -> Reading[bool]:
        """Reads the next value, inside the object or list that `closer` ends. Returns whether the
        value is complete, which is false only if the text was cut off."""
        character = yield from self._source.peek()
        if character and character in QUOTES:
            place = Place.VALUE if closer in ("", "}") else Place.ITEM
            return (yield from self._strings.read(place))
        if character == "," or (yield from self._at_end(character)):
            return self._add("null")
        if character not in _CLOSERS:
            return (yield from self._word())
        if len(self._open) < MAX_DEPTH:
            return (yield from self._container(character))
        yield from _skip_nested(self._source)
        return self._add("null")

    def _add(self, text: str) -> bool:
        """Adds what the text lacks, unless it was cut off; returns whether it was added."""
        if self._source.cut_here:
            return False
        self._sink(text)
        return True

    def _container(self, opener: str) -> Reading[bool]:
        closer = _CLOSERS[opener]
        self._source.advance(1)
        self._sink("{" if opener == "{" else "[")
        self._open.append(closer)
        is_first = True
        while True:
            gap = yield from self._gap()
            character = yield from self._source.peek()
            if (yield from self._at_end(character)):
                break
            if character in _ENDS:  # a closing bracket without an open one
                self._source.advance(1)
                continue
            self._sink(_separator(gap, is_first=is_first))
            if closer != "}" or (yield from self._key()):
                yield from self.read(closer)
            is_first = False
        self._open.pop()
        written = "}" if closer == "}" else "]"
        if character == closer:
            self._source.advance(1)
            self._sink(gap.replace(",", "") + written)
            return True
        return self._add(written)

    def _at_end(self, character: str) -> Reading[bool]:
        """Whether the open object or list ends here."""
        if not character or character in self._open:
            return True
        return (yield from self._source.at_any(self._marks))

    def _gap(self, separator: str = ",", comments: str = "/#") -> Reading[str]:
        """Reads white space and separators; leaves out comments and unusual white space."""
        gap: list[str] = []
        while character := (yield from self._source.peek()):
            if character in comments:
                if not (yield from self._comment()):
                    break
                continue
            if character in (separator, *_SPACE):
                gap.append(character)
            elif not (character.isspace() or character < " "):
                break
            self._source.advance(1)
        return "".join(gap)

    def _comment(self) -> Reading[bool]:
        if (yield from self._source.take("/*")):
            yield from self._source.skip_past("*/")
            return True
        if (yield from self._source.take("//")) or (yield from self._source.take("#")):
            yield from self._source.take_while(lambda character: character != "\n")
            return True
        return False

    def _key(self) -> Reading[bool]:
        """Passes on a key and its colon; returns whether there is a key, after which a value
        follows."""
        if (yield from self._source.peek()) in QUOTES:
            yield from self._strings.read(Place.KEY)
        else:
            word = yield from self._text_until(':,}]"\n')
            if (yield from self._strings.ends_here(Place.KEY)):
                self._source.advance(1)
            self._add(json.dumps(_stripped(word), ensure_ascii=False))
        before = yield from self._gap("")
        if (yield from self._source.take(":")):
            after = yield from self._gap("", comments="/")
            self._sink(f"{before}:{after}")
            return True
        self._add(": null")
        return False

    def _word(self) -> Reading[bool]:
        """Passes on a value without quotes, as a JSON literal or number if it is one, else as a
        string."""
        word = yield from self._source.take_while(_is_of_word)
        known = _LITERALS.get(word) or (word if _NUMBER.fullmatch(word) else None)
        following = yield from self._source.peek()
        ends_word = following in QUOTES or following in f"{_SPACE},/#" or following in _ENDS
        if known and (ends_word or (yield from self._source.at_any(self._marks))):
            self._sink(known)
            return True
        word += yield from self._text_until(',}]"\n' + (")" if ")" in self._open else ""))
        if (yield from self._strings.ends_here(Place.VALUE)):
            self._source.advance(1)
        return self._add(_json_of(_stripped(word)))

    def _text_until(self, stops: str) -> Reading[str]:
        """Reads text up to one of the characters `stops`, a mark or the end."""
        begins = {mark[0] for mark in self._marks}
        parts: list[str] = []
        while True:
            part = yield from self._source.take_while(
                lambda character: character not in stops and character not in begins
            )
            parts.append(part)
            character = yield from self._source.peek()
            if not character or character in stops or (yield from self._source.at_any(self._marks)):
                return "".join(parts)
            parts.append(character)
            self._source.advance(1)


def _separator(gap: str, *, is_first: bool) -> str:
    """`gap` with exactly one comma; with none before the first item."""
    if is_first:
        return gap.replace(",", "")
    return gap if gap.count(",") == 1 else "," + (gap.replace(",", "") or " ")


def _stripped(word: str) -> str:
    return word.strip().strip("\"'\\").strip()


def _json_of(word: str) -> str:
    """JSON for a word that is not JSON: a number if it is one in another spelling, else a
    string."""
    if not word:
        return "null"
    loose = _LOOSE_NUMBER.fullmatch(word)
    if loose is None or not (loose[2] or (loose[3] or ".") != "."):
        return json.dumps(word, ensure_ascii=False)
    sign, whole, part, exponent = (group or "" for group in loose.groups())
    return sign + (whole or "0") + (part if len(part) > 1 else "") + exponent


def _skip_nested(source: CallSource) -> Reading[None]:
    """Skips an object or a list, including nested ones."""
    yield from pass_nested(source, lambda part: None)


def pass_nested(source: CallSource, sink: Callable[[str], object]) -> Reading[None]:
    """Passes on an object or a list unchanged, to its end or the end of the text."""
    depth, quoted = 0, False
    while (yield from source.peek()):
        stop = source.find(_IN_STRING if quoted else _BRACKETS)
        part = source.ahead(source.available if stop is None else stop[0] + 1)
        sink(part)
        source.advance(len(part))
        character = "" if stop is None else stop[1]
        if character == "\\":
            escaped = yield from source.peek()
            sink(escaped)
            source.advance(len(escaped))
        elif character == '"':
            quoted = not quoted
        elif character:
            depth += 1 if character in "{[" else -1
            if depth == 0:
                return


def skip_leftover(source: CallSource, marks: Sequence[str], separators: str) -> Reading[bool]:
    """Skips the rest of an object that seemed to have ended but had not: the apparent end was
    inside a string with unescaped quotation marks. Moves the source's mark after the rest; returns
    whether there was any. `separators`: text read just before."""
    quote = yield from source.peek()
    if not quote or quote not in QUOTES:
        return False
    start = source.position
    source.advance(1)
    yield from source.skip_space()
    is_leftover = (yield from source.peek()) in ("", ",", "}", "]")
    if not is_leftover and "," in separators:
        yield from source.take_while(lambda character: character not in "\"'\n", _KEY_CHARACTERS)
        is_key = yield from source.take(quote)
        yield from source.skip_space()
        is_leftover = is_key and (yield from source.peek()) == ":"
    if not is_leftover:
        source.go_back(start)
        return False
    source.mark()
    before = ","
    while token := (yield from _skip_token(source, marks, before)):
        source.mark()
        before = token
    return True


def _skip_token(source: CallSource, marks: Sequence[str], before: str) -> Reading[str]:
    """Reads the next JSON token and returns its first character; "" if what comes next cannot
    follow the token `before`."""
    yield from source.skip_space()
    start = source.position
    character = yield from source.peek()
    if not character or (yield from source.at_any(marks)):
        return ""
    if character in "}[],:" or (character == "{" and before in "[:"):
        source.advance(1)
    elif character in QUOTES:
        source.advance(1)
        while (yield from source.skip_to([character, *marks])) == character:
            source.advance(1)
            if source.behind(2) != f"\\{character}":
                break
    else:
        word = yield from source.take_while(_is_of_word)
        if not (word in _LITERALS or _NUMBER.fullmatch(word)):
            source.go_back(start)
            return ""
    return character


def _is_of_word(character: str) -> bool:
    return character.isalnum() or character in "+-._"
