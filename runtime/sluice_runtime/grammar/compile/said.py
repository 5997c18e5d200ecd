"""What the library says of a grammar that it does not take, and how the client hears of it."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from sluice_contract.http_errors import shown_json

from sluice_runtime.errors import GrammarError
from sluice_runtime.messages import GrammarKind

REGEX: Final = (
    "a regular expression of characters, classes, groups (…), (?:…) and (?<name>…), | and repeats, "
    "with ^ and $ around the whole only; no lookaround, back-references, \\b, \\p{L}, possessive "
    "repeats or flags such as (?i)"
)
_ALLOWED: Final[Mapping[GrammarKind, str]] = {
    "json_schema": "a JSON schema that answers can be held to",
    "open_json_schema": "a JSON schema that answers can be held to",
    "regex": REGEX,
    "ebnf": 'a grammar in EBNF with a rule root, such as root ::= "a" | [0-9]+',
    "tags": "parameters whose schema answers can be held to",
}
_ERRORS: Final = 2
_MOST_ERROR_BYTES: Final = 4096
_MOST_SAID: Final = 300
_SOURCE: Final = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Warning: )?", re.MULTILINE)
_CHECK: Final = re.compile(r"^Check failed: .*? is false: ?", re.DOTALL)
_INTERNAL: Final = re.compile(r"std::|::Impl|\bis<|structural_tag|Failed to parse JSON")
"""What of the library's words is about itself, and not about what it was given."""
_GRAMMAR_PLACE: Final = re.compile(r"EBNF (?:parser|lexer) error at line \d+, column \d+: ")
"""A place in what the library makes of a regular expression, which nobody wrote."""
_POSITION: Final = re.compile(r"Regex parsing (?:error|warning) at position (\d+): ")
_AFTERWARDS: Final = re.compile(
    r"^Ignoring .*|; (?:ignoring|falling back|matching) .*|, will be set .*"
    r"|\. (?:It is ignored|The character itself).*|(?: and)? is ignored(?: in regex)?:.*",
    re.DOTALL,
)
"""Of a warning, what the library would do with what it does not take: here it is refused."""
_IN_OUR_WORDS: Final = tuple(
    (re.compile(said, re.DOTALL), ours)
    for said, ours in (
        (r"(?:Anchor )?'\^' (?:should be|in the middle).*", "'^' is not at the start"),
        (r"(?:Anchor )?'\$' (?:should be|in the middle).*", "'$' is not at the end"),
        (r"Escape sequence '?(\\[^' ]+)'? is not recognized.*", r"the escape \1 is not known"),
        (r"Look(ahead|behind) assertion is not supported.*", r"look\1 is not supported"),
        (r"Word boundary is not", r"a word boundary is not"),
        (r"Backreference is not", r"a back-reference is not"),
        (r"Unicode character class escape sequence is not", r"a class of Unicode is not"),
        (r"Two consecutive repetition modifiers are not allowed", "a repeat follows a repeat"),
        (r" in regex$", ""),
        (r"Group modifier flag is not .*", "a group that begins like this is not supported"),
        (r"Expect element, but got (\S)", r"there is nothing to repeat before \1"),
        (r"Invalid repetition range \{.*", "a repeat goes to 2147483647"),
        (r"Invalid repetition count", "a repeat is written {2}, {2,} or {2,5}"),
        (r" yet$", ""),
    )
)


@contextmanager
def errors_caught() -> Iterator[io.BytesIO]:
    """What is written to standard error inside, to be read after.

    The library says there, and only there, what of a grammar it will ignore.
    """
    said, kept = io.BytesIO(), os.dup(_ERRORS)
    caught = os.memfd_create("errors")
    os.dup2(caught, _ERRORS)
    try:
        yield said
    finally:
        os.dup2(kept, _ERRORS)
        os.close(kept)
        with open(caught, "rb") as file:
            file.seek(0)
            said.write(file.read(_MOST_ERROR_BYTES))


def plain_words(said: str) -> str:
    """In one line, without where in its sources the library said so."""
    return " ".join(_SOURCE.sub("", said).split())[:_MOST_SAID]


def first_warning(said: bytes) -> str:
    """It says each several times, one a line; empty: none."""
    warning = plain_words(said.decode(errors="replace").strip().partition("\n")[0])
    return warning and (_AFTERWARDS.sub("", warning) or "it cannot be kept")


def refusal(kind: GrammarKind, text: str, said: str) -> GrammarError:
    """`said`: by the library, in plain words, or by us."""
    if kind == "regex":
        return regex_refusal("", text, said)
    given = f"{shown_json(text)}: " if kind == "ebnf" else ""
    return GrammarError(f"{given}{_why(said)}; allowed: {_ALLOWED[kind]}")


def regex_refusal(place: str, pattern: str, said: str) -> GrammarError:
    """`place`: of the pattern in a schema, or empty."""
    where = f"{place}: " if place else ""
    why = _GRAMMAR_PLACE.sub("", _why(said))
    if found := _POSITION.search(why):
        position = int(found[1])
        why = why[found.end() :]
        where_in_it = f"at position {position}: " if position <= len(pattern) else "at its end: "
    else:
        where_in_it = ""
    for words, ours in _IN_OUR_WORDS:
        why = words.sub(ours, why)
    if why[1:2].islower():
        why = why[0].lower() + why[1:]
    return GrammarError(f"{where}{shown_json(pattern)}: {where_in_it}{why}; allowed: {REGEX}")


def schema_refusal(kind: GrammarKind, place: str, value: object, said: str) -> GrammarError:
    """For what the library says of one part of a schema."""
    why = _GRAMMAR_PLACE.sub("", _why(said))
    return GrammarError(f"{place}: {shown_json(value)}: {why}; allowed: {_ALLOWED[kind]}")


def _why(said: str) -> str:
    why = _CHECK.sub("", said)
    if not why or _INTERNAL.search(why):
        return "it cannot be compiled"
    return why.rstrip(".")
