"""Converts patterns of JSON Schema, which are ECMAScript's regular expressions, for the grammar
library; pure.

JSON Schema searches for a pattern: a value fits if the pattern matches any part of it. The library
searches too, but only in JSON strings. For unquoted text `searched` spells the search out in the
expression.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sluice_runtime.errors import GrammarError

ANY_TEXT: Final = r"[\s\S]*"
_NO_LINE_END: Final = r"[^\n\r\u{2028}\u{2029}]"
_MAX_VARIANTS: Final = 64
"""Maximum alternatives of a pattern whose anchors are written out."""
_PIECE: Final = re.compile(
    r"\\u\{[0-9a-fA-F]+\}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\c[A-Za-z]|\\[pP]\{[^}]*\}|\\."
    r"|\(\?(?:<?[=!]|P?<\w+>|[a-z-]*:)|\(\?[a-z-]+\)"
    r"|[*+?]\??|\{\d+(?:,\d*)?\}\??|\[\^?|.",
    re.DOTALL,
)
_QUANTIFIER: Final = re.compile(r"[*+?]\??|\{\d+(?:,\d*)?\}\??")


def portable(pattern: str) -> str:
    """An ECMAScript pattern in the library's syntax; constructs unknown to the library stay
    unchanged."""
    written: list[str] = []
    pieces = iter(_PIECE.findall(pattern))
    ecma = "(?s)" not in pattern  # (?s) of other languages: a dot matches any character
    for piece in pieces:
        if piece in ("[", "[^"):
            written.append(_class(piece, pieces))
        elif piece == "." and ecma:
            written.append(_NO_LINE_END)
        else:
            written.append("\\{" if piece == "{" else _escape(piece))
    return "".join(written)


def _class(opening: str, pieces: Iterator[str]) -> str:
    """Text of a character class whose opening bracket has been read."""
    members: list[str] = []
    for piece in pieces:
        for part in _within_class(piece):
            if part == "]":
                if members:
                    return opening + "".join(members) + "]"
                return r"[\s\S]" if opening == "[^" else r"[^\s\S]"
            members.append("\\-" if part == "-" and members[-1:] == ["-"] else part)
    return opening + "".join(members)  # the class has no end; the library refuses it


def _within_class(piece: str) -> Sequence[str]:
    if piece.startswith("\\"):
        return [r"\x08" if piece == r"\b" else _escape(piece)]
    return [f"\\{character}" if character in "[&~" else character for character in piece]


def _escape(piece: str) -> str:
    if piece == r"\0":
        return r"\x00"
    if piece.startswith(r"\c") and len(piece) == 3:
        return f"\\x{ord(piece[2]) % 32:02x}"
    if piece.startswith(r"\u") and len(piece) == 12:
        high, low = int(piece[2:6], 16), int(piece[8:], 16)
        return f"\\u{{{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00:x}}}"
    return piece


class _Group(NamedTuple):
    opening: str
    alternatives: list[list[_Item]]
    quantifier: str = ""


_Item = str | _Group


def searched(pattern: str) -> str:
    """Expression, without anchors, that matches exactly the texts in which `pattern` is found.

    Raises:
        GrammarError: an anchor is in the middle of the pattern, or there are too many variants.
    """
    variants: list[str] = []
    try:
        for variant in _variants(_alternatives(_pieces(portable(pattern)))):
            variants.append(variant)
            if len(variants) > _MAX_VARIANTS:
                raise GrammarError(f"anchors in too many places; allowed: {_MAX_VARIANTS} of them")
    except RecursionError:
        raise GrammarError("the pattern is nested too deeply") from None
    return "|".join(variants)


def _variants(alternatives: list[list[_Item]]) -> Iterator[str]:
    for sequence in alternatives:
        for from_start, rest in _starts(sequence):
            for to_end, body in _ends(rest):
                if _has_anchor(body):
                    raise GrammarError("^ or $ within it is not implemented; allowed: at its edges")
                before, behind = "" if from_start else ANY_TEXT, "" if to_end else ANY_TEXT
                yield f"{before}(?:{_text(body)}){behind}"


def _pieces(pattern: str) -> list[str]:
    """Pieces of a pattern; a character class is one piece."""
    pieces, source = list[str](), iter(_PIECE.findall(pattern))
    for piece in source:
        pieces.append(_class(piece, source) if piece in ("[", "[^") else piece)
    pieces.reverse()
    return pieces


def _alternatives(pieces: list[str]) -> list[list[_Item]]:
    """Alternatives up to the end of a group; removes their pieces from the end of `pieces`, which
    is reversed."""
    alternatives: list[list[_Item]] = [[]]
    while pieces:
        piece = pieces.pop()
        if piece == ")":
            break
        if piece == "|":
            alternatives.append([])
        elif piece == "(" or (piece.startswith("(?") and not piece.endswith(")")):
            group = _Group(piece, _alternatives(pieces))
            while pieces and _QUANTIFIER.fullmatch(pieces[-1]):
                group = group._replace(quantifier=group.quantifier + pieces.pop())
            alternatives[-1].append(group)
        else:
            alternatives[-1].append(piece)
    return alternatives


def _starts(sequence: list[_Item]) -> Iterator[tuple[bool, list[_Item]]]:
    """Variants of the sequence without its leading anchors, each with whether it began with one."""
    first = sequence[0] if sequence else ""
    if first == "^":
        yield from ((True, rest) for _, rest in _starts(sequence[1:]))
    elif _opens(first):
        assert isinstance(first, _Group)
        for alternative in first.alternatives:
            yield from _starts([*alternative, *sequence[1:]])
    else:
        yield False, sequence


def _ends(sequence: list[_Item]) -> Iterator[tuple[bool, list[_Item]]]:
    """Variants of the sequence without its trailing anchors, each with whether it ended with
    one."""
    last = sequence[-1] if sequence else ""
    if last == "$":
        yield from ((True, rest) for _, rest in _ends(sequence[:-1]))
    elif _opens(last):
        assert isinstance(last, _Group)
        for alternative in last.alternatives:
            yield from _ends([*sequence[:-1], *alternative])
    else:
        yield False, sequence


def _opens(item: _Item) -> bool:
    """Whether a group with anchors can be written as its alternatives."""
    return isinstance(item, _Group) and not item.quantifier and _has_anchor([item])


def _has_anchor(sequence: Sequence[_Item]) -> bool:
    return any(
        item in ("^", "$") if isinstance(item, str) else any(map(_has_anchor, item.alternatives))
        for item in sequence
    )


def _text(sequence: Sequence[_Item]) -> str:
    return "".join(
        item
        if isinstance(item, str)
        else f"{item.opening}{'|'.join(map(_text, item.alternatives))}){item.quantifier}"
        for item in sequence
    )
