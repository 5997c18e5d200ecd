"""What is said of a grammar that cannot be compiled: plain words, and what would be allowed."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.compile.compiling import compile_grammar
from sluice_runtime.grammar.native import RAW, GrammarCompiler, TokenizerInfo
from sluice_runtime.grammar.schema.json_schema import usable_schema
from sluice_runtime.messages import GrammarKind

ASCII = [bytes([value]) for value in range(128)] + [b""]
COMPILER = GrammarCompiler(TokenizerInfo(ASCII, RAW, len(ASCII), [], False), 1, False, 0)
BYTES = [bytes([value]) for value in range(256)]
BYTES_COMPILER = GrammarCompiler(TokenizerInfo(BYTES, RAW, len(BYTES), [], False), 1, False, 0)

SCHEMA = "a JSON schema that answers can be held to"
INTERNALS = re.compile(
    r"Check failed|std::|Impl|is<|structural_tag|json_schema|ignor|falling back|\.cc", re.I
)


def called(schema: Any) -> str:
    form = {"type": "json_schema", "json_schema": schema}
    return json.dumps({"type": "structural_tag", "format": form})


REFUSED: list[tuple[GrammarKind, str, str]] = [
    ("regex", "(a", '"(a": at its end: the parenthesis is not closed; allowed: a regular'),
    ("regex", "ab)", "\"ab)\": at position 3: unmatched ')'; allowed: "),
    ("regex", "a^b", "\"a^b\": at position 2: '^' is not at the start; allowed: "),
    ("regex", "a$b", "\"a$b\": at position 2: '$' is not at the end; allowed: "),
    ("regex", r"\Aa", r'"\\Aa": at position 1: the escape \A is not known; allowed: '),
    ("regex", r"\ba", r'"\\ba": at position 1: a word boundary is not supported; allowed: '),
    (
        "regex",
        "(?i)a",
        '"(?i)a": at position 3: a group that begins like this is not supported; al',
    ),
    ("regex", "a++", '"a++": at position 3: a repeat follows a repeat; allowed: '),
    ("regex", "a{,5}", '"a{,5}": at position 3: a repeat is written {2}, {2,} or {2,5}; allowed: '),
    (
        "regex",
        "[z-a]",
        '"[z-a]": invalid character class: lower bound is larger than upper bound; ',
    ),
    ("regex", "*a", '"*a": there is nothing to repeat before *; allowed: '),
    ("regex", "a{5,2}", '"a{5,2}": lower bound is larger than upper bound: 5 > 2; allowed: '),
    ("regex", "(a{0,60}){0,60}b", "; write it without repeats within repeats such as (a{0,60})"),
    ("regex", r"a\1" + "b" * 99, r'"a\\1bbb'),
    ("ebnf", "root ::= x", '"root ::= x": EBNF parser error at line 1, column 10: Rule "x" is not'),
    ("ebnf", 'root ::= "a" ::= "b"', "Assign should be preceded by an identifier; allowed: a gr"),
    ("ebnf", "root ::= root", "no answer of this model can begin as it demands; allowed: a gramm"),
    ("json_schema", '{"$ref": "#/x"}', f"Cannot find field x in #/x; allowed: {SCHEMA}"),
    ("json_schema", '{"format": 7, "type": "string"}', f"it cannot be compiled; allowed: {SCHEMA}"),
    ("json_schema", '{"const": Infinity}', f"it cannot be compiled; allowed: {SCHEMA}"),
    (
        "json_schema",
        '{"type": "integer", "minimum": 1e23}',
        f"Integer exceeds maximum limit; allowed: {SCHEMA}",
    ),
    (
        "json_schema",
        '{"items": {"type": "integer", "multipleOf": 5, "minimum": 0}, "type": "array"}',
        'items: {"type":"integer","multipleOf":5,"minimum":0}: range + multipleOf combination not '
        f"yet supported; allowed: {SCHEMA}",
    ),
    (
        "open_json_schema",
        '{"oneOf": [{"type": "integer"}, {}]}',
        f"branches cannot be represented exactly; allowed: {SCHEMA}",
    ),
    (
        "json_schema",
        '{"type": "string", "format": "uuid", "minLength": 3}',
        f": format combined with minLength/maxLength is not supported; allowed: {SCHEMA}",
    ),
    (
        "json_schema",
        '{"type": "string", "pattern": "^.{0,2147483648}$"}',
        "a repeat goes to 2147483647; allowed: ",
    ),
    (
        "json_schema",
        '{"properties": {"x": {"type": "string", "pattern": "(a"}}, "type": "object"}',
        'properties.x.pattern: "(a": at its end: the parenthesis is not closed; allowed: a r',
    ),
    (
        "json_schema",
        '{"anyOf": [{}, {"type": "string", "pattern": "a^b"}]}',
        "anyOf[1].pattern: \"a^b\": '^' is not at the start; allowed: a regular expression",
    ),
    (
        "open_json_schema",
        '{"$defs": {"p": {"type": "string", "pattern": "[z-a]"}}, "$ref": "#/$defs/p"}',
        '$defs.p.pattern: "[z-a]": invalid character class: lower bound is larger',
    ),
    (
        "json_schema",
        '{"type": "object", "patternProperties": {"a": {}, "b)": {}}}',
        "patternProperties: \"b)\": at position 2: unmatched ')'; allowed: a regular expression",
    ),
    (
        "json_schema",
        '{"items": {"type": "integer", "minimum": 5, "maximum": 4}, "type": "array"}',
        'items: {"type":"integer","minimum":5,"maximum":4}: Invalid range',
    ),
    (
        "json_schema",
        '{"type": "array", "prefixItems": [{"pattern": "a"}], "items": false, "minItems": 3}',
        'the schema: {"type":"array","minItems":3}: minItems is greater',
    ),
    (
        "tags",
        called({"type": "object", "properties": {"x": {"type": "string", "pattern": "(a"}}}),
        'properties.x.pattern: "(a": at its end: ',
    ),
    ("tags", called({"const": float("inf")}), "it cannot be compiled; allowed: parameters whose"),
    ("tags", called({"type": "string", "format": 7}), "it cannot be compiled; allowed: parameters"),
]


@pytest.mark.parametrize(("kind", "text", "says"), REFUSED)
def test_a_refusal_says_what_is_allowed_and_nothing_of_the_librarys_insides(
    kind: GrammarKind, text: str, says: str
) -> None:
    with pytest.raises(GrammarError) as error:
        compile_grammar(COMPILER, kind, text, np.array([len(token) for token in ASCII]))
    said = str(error.value)
    assert says in said
    assert "; allowed: " in said
    assert not INTERNALS.search(said)
    assert len(said) < 600


@pytest.mark.parametrize(
    "pattern",
    [
        "^ab$", "^a|b$", "(a)(?:b)(?<c>d)", "a*?b+?c??d{1,2}?", "a{2}b{2,}c{2,5}", "a||b",
        r"\d\w\s\D\W\S", r"[^\W\d]", r"\x41\u0041\u{1F600}\n", r"\^\$", "é+[é-ü].",
    ],
)  # fmt: skip
def test_what_a_regular_expression_may_hold_is_compiled(pattern: str) -> None:
    assert compile_grammar(BYTES_COMPILER, "regex", pattern, np.ones(256, np.int64))


@pytest.mark.parametrize(
    "pattern",
    [
        "a^b", r"a\b", r"a\B", "(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b", r"(a)\1", r"(?<n>a)\k<n>",
        r"\p{L}", r"[\p{L}]", "(?i)a", "(?i:a)", "(?P<n>a)", "(?>a)", "a*+", r"\A", r"\Z",
    ],
)  # fmt: skip
def test_what_a_regular_expression_may_not_hold_is_refused(pattern: str) -> None:
    with pytest.raises(GrammarError, match="; allowed: a regular expression"):
        compile_grammar(BYTES_COMPILER, "regex", pattern, np.ones(256, np.int64))


BOUNDS = [
    {"exclusiveMinimum": -1},
    {"maximum": 7},
    {"minimum": -9_999, "maximum": 0},
    {"minimum": -9_999, "maximum": 1},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 10_001},
    {"exclusiveMinimum": 0, "exclusiveMaximum": 10_002},
    {"exclusiveMinimum": 0, "minimum": 0, "maximum": 10_000},
    {"minimum": 0, "maximum": 10_000, "exclusiveMaximum": 10_001},
]


@pytest.mark.parametrize("bounds", BOUNDS, ids=str)
def test_multiples_between_bounds_are_refused_where_the_library_does_not_take_them(
    bounds: dict[str, int],
) -> None:
    """By us, who can say what is allowed, and not after them."""
    schema = {"type": "integer", "multipleOf": 5, **bounds}

    def is_taken(text: str) -> bool:
        try:
            compile_grammar(BYTES_COMPILER, "json_schema", text, np.ones(256, np.int64))
        except GrammarError:
            return False
        return True

    if is_taken(json.dumps(schema)):
        assert usable_schema(schema) == schema
    else:
        with pytest.raises(
            GrammarError, match=r"^multipleOf: 5 beside .*; allowed: without bounds"
        ):
            usable_schema(schema)
