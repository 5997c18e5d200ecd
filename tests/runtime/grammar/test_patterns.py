"""Patterns mean what JSON Schema says: they are searched for, in quoted strings and in others."""

from __future__ import annotations

import itertools
import random
import re

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from llguidance import regex_to_lark
from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.patterns import portable, searched

from tests.examples import examples
from tests.runtime.grammar.drawing import BYTES, accepts, matcher_of, schema_matcher
from tests.runtime.grammar.schema_values import allows

PATTERNS = [
    r"\S", "^https?://", r"\.json$", "@", "^[a-z]", "[A-Za-z]+", "^a|b$", r"\d", r"\D", r"\w",
    r"\W",
    r"^\S+$", r"a\/b", "^$", "", "^a$|^b$", "(^a)|(b$)", "^(a|b)", r"\u00e9", "^.$", "a.b", "[^a]",
    r"\x41", r"[\s\S]", r"^[^\s]*$", "a$|^b", "(?:^|x)a", r"[\d\-]", "a{2,3}?", r"\-", r"[\w-]+",
    r"(^|,)foo(,|$)", r"^[\w.\-]+$", "[[a]", "[a&&b]", "[+--]", "^a{2}$", r"[\]x]",
]  # fmt: skip
TEXTS = [
    "daily report", "a/b.json", "a@b.c", "name_1", "12 abc", "xb", "ab", "a", "b", "", "a\nb",
    'a"b', "a\\b", "é", "日本 語", "x" * 50, " ", "a/b", "https://example.org/a", "A", "foo",
    "x,foo,y", "aa", "[", "&", "-", "]",
]  # fmt: skip


@pytest.mark.filterwarnings("ignore:Possible (nested|set):FutureWarning")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_searched_for(pattern: str) -> None:
    ascii_pattern = re.compile(pattern, re.ASCII)  # as in ECMAScript
    quoted = schema_matcher({"type": "string", "pattern": pattern}, tokenizer=BYTES)
    plain = matcher_of("lark", f"start: /{regex_to_lark(searched(pattern), 'dw')}/", BYTES)
    for text in TEXTS:
        fits = bool(ascii_pattern.search(text))
        assert allows(quoted, text) is fits, text
        assert accepts(plain, text.encode()) is fits, text


@pytest.mark.parametrize(
    ("pattern", "fits", "fails"),
    [
        (r"^\0$", "\0", "0"), (r"^\cA$", "\1", "A"), (r"^[\b]$", "\b", "b"), ("^a{$", "a{", "a"),
        ("^{a}$", "{a}", "a"), ("^a{,3}$", "a{,3}", "aa"), ("^[^]$", "é", "ab"),
        (r"^\ud83d\ude00$", "\U0001f600", "a"), (r"^\u{61}$", "a", "u"), (r"^\p{L}+$", "éa", "1"),
        ("^.$", "a", "\u2028"), (r"^\w$", "a", "é"), (r"^\d$", "1", "٣"),
        ("^(?<year>a)$", "a", "b"),
        ("^$", "", "\n"),
    ],
)  # fmt: skip
def test_escapes_and_classes_are_those_of_ecmascript(pattern: str, fits: str, fails: str) -> None:
    quoted = schema_matcher({"type": "string", "pattern": pattern}, tokenizer=BYTES)
    plain = matcher_of("lark", f"start: /{regex_to_lark(searched(pattern), 'dw')}/", BYTES)
    assert accepts(plain, fits.encode())
    assert not accepts(plain, fails.encode())
    if fits.isprintable():  # others are written as escapes, each in several ways
        assert allows(quoted, fits)
    assert not allows(quoted, fails)
    assert portable(portable(pattern)) == portable(pattern)


PLACES = [
    ({"type": "array", "items": {"type": "string", "pattern": "b"}}, [["abc"], ["b", "a"], []]),
    ({"type": "string", "pattern": r"\S", "minLength": 2}, ["ab", "a", "  ", " a"]),
    ({"type": "string", "pattern": "b", "maxLength": 2}, ["ab", "abc", "a"]),
    ({"type": "string", "pattern": "^2024", "format": "date"}, ["2024-01-01", "2023-01-01"]),
    ({"enum": ["ab", "b", "c", 1], "pattern": "b$"}, ["ab", "b", "c", 1]),
    ({"type": ["string", "null"], "pattern": "b"}, ["abc", None, "a"]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]"}}, [{"abc": 1}, {"1": 1}, {}]),
    ({"type": "object", "propertyNames": {"pattern": "x"}}, [{"axb": 1}, {"a": 1, "x": 2}]),
    ({"type": "object", "propertyNames": {"minLength": 2}}, [{"ab": 1}, {"a": 1}]),
    ({"type": "object", "propertyNames": {"maxLength": 2}}, [{"ab": 1}, {"abc": 1}, {"": 1}]),
    ({"type": "object", "propertyNames": {"const": "a"}}, [{"a": 1}, {"b": 1}, {}]),
    (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "required": ["b"]},
        [{"a": 1, "b": 2}, {"a": 1}, {"b": 1}, {"b": 1, "c": 2}],
    ),
    (
        {"type": "object", "propertyNames": {"$ref": "#/$defs/n"}, "$defs": {"n": {"enum": ["a"]}}},
        [{"a": 1}, {"b": 1}],
    ),
    (
        {"type": "object", "patternProperties": {"b": {"type": "integer"}}},
        [{"abc": 1}, {"abc": "x"}, {"a": "x"}],
    ),
]


@pytest.mark.parametrize(("schema", "values"), PLACES, ids=str)
def test_a_pattern_means_that_wherever_it_stands(schema: object, values: list[object]) -> None:
    matcher = schema_matcher(schema, closed=False, tokenizer=BYTES)
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        assert allows(matcher, value) is validator.is_valid(value), value


ATOMS = ["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", r"\S", "1", r"\s", "^", "$", " ", r"\/", "é"]
CHARACTERS = ["a", "b", "1", " ", "/", "é", "\n"]
SHORT = ["".join(text) for size in range(4) for text in itertools.product(CHARACTERS, repeat=size)]


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.tuples(st.sampled_from(["(", "(?:"]), parts, parts)
    repeats = st.tuples(parts, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "*?"]))
    return st.one_of(
        st.tuples(parts, parts).map("".join),
        groups.map(lambda three: f"{three[0]}{three[1]}|{three[2]})"),
        repeats.map(lambda two: f"(?:{two[0]}){two[1]}"),
        st.tuples(parts, parts).map("|".join),
    )


@examples(60)
@given(st.recursive(st.sampled_from(ATOMS), joined, max_leaves=8), st.randoms())
def test_any_pattern_is_searched_for_or_refused(pattern: str, draw: random.Random) -> None:
    try:
        quoted = schema_matcher({"type": "string", "pattern": pattern}, tokenizer=BYTES)
    except GrammarError:
        assume(False)
    # Python's $ matches before a line end, too.
    python = re.compile(re.sub(r"(?<!\\)\$", r"\\Z", pattern), re.ASCII)
    texts = draw.sample(SHORT, 20)
    assert [text for text in texts if allows(quoted, text) != bool(python.search(text))] == []
    try:
        plain = matcher_of("lark", f"start: /{regex_to_lark(searched(pattern), 'dw')}/", BYTES)
    except GrammarError:
        return
    assert [t for t in texts if accepts(plain, t.encode()) != bool(python.search(t))] == []


@pytest.mark.parametrize("pattern", ["(" * 5000 + "a" + ")" * 5000, "^" * 5000, "a^b", "(^a)*b"])
def test_anchors_that_cannot_be_written_out_are_refused(pattern: str) -> None:
    with pytest.raises(GrammarError):
        searched(pattern)
