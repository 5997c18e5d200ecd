"""Grammars that cannot be compiled are refused with the library's own message."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from sluice_contract.http_errors import shown_json
from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.compile.compiling import compile_grammar
from sluice_runtime.grammar.native import RAW, GrammarCompiler, TokenizerInfo
from sluice_runtime.grammar.schema.json_schema import usable_schema
from sluice_runtime.wire.messages import GrammarKind

ASCII = [bytes([value]) for value in range(128)] + [b""]
COMPILER = GrammarCompiler(TokenizerInfo(ASCII, RAW, len(ASCII), [], False), 1, False, 0)
BYTES = [bytes([value]) for value in range(256)]
BYTES_COMPILER = GrammarCompiler(TokenizerInfo(BYTES, RAW, len(BYTES), [], False), 1, False, 0)


def called(schema: Any) -> str:
    form = {"type": "json_schema", "json_schema": schema}
    return json.dumps({"type": "structural_tag", "format": form})


REFUSED: list[tuple[GrammarKind, str]] = [
    ("regex", "(a"),
    ("regex", "[z-a]"),
    ("regex", "a{5,2}"),
    ("ebnf", "root ::= x"),
    ("ebnf", 'root ::= "a" ::= "b"'),
    ("ebnf", "root ::= root"),
    ("json_schema", '{"$ref": "#/x"}'),
    ("json_schema", '{"format": 7, "type": "string"}'),
    ("json_schema", '{"const": Infinity}'),
    ("json_schema", '{"type": "string", "pattern": "^.{0,2147483648}$"}'),
    (
        "open_json_schema",
        '{"$defs": {"p": {"type": "string", "pattern": "[z-a]"}}, "$ref": "#/$defs/p"}',
    ),
    ("tags", called({"type": "object", "properties": {"x": {"type": "string", "pattern": "(a"}}})),
    ("tags", called({"const": float("inf")})),
]
IGNORED_BY_THE_LIBRARY: list[tuple[GrammarKind, str]] = [
    ("regex", "a^b"),
    ("regex", r"\Aa"),
    ("json_schema", '{"type": "integer", "multipleOf": 5, "minimum": 0}'),
    ("json_schema", '{"type": "string", "format": "uuid", "minLength": 3}'),
    ("open_json_schema", '{"oneOf": [{"type": "integer"}, {}]}'),
    ("tags", called({"type": "string", "pattern": "a^b"})),
]
"""It only warns of a part that it leaves out."""


@pytest.mark.parametrize(("kind", "text"), REFUSED + IGNORED_BY_THE_LIBRARY)
def test_a_refusal_is_one_short_line(kind: GrammarKind, text: str) -> None:
    with pytest.raises(GrammarError) as error:
        compile_grammar(COMPILER, kind, text, np.array([len(token) for token in ASCII]))
    message = str(error.value)
    assert "\n" not in message
    assert ".cc:" not in message
    assert 0 < len(message) < 600
    assert message.startswith(shown_json(text)) == (kind in ("regex", "ebnf"))


def test_a_grammar_that_is_slow_to_follow_is_refused() -> None:
    with pytest.raises(GrammarError, match="; write it without repeats within repeats"):
        compile_grammar(COMPILER, "regex", "(a{0,60}){0,60}b", np.ones(len(ASCII), np.int64))


def test_a_refusal_passes_on_what_the_library_says() -> None:
    with pytest.raises(GrammarError, match=r"position 3: Unmatched '\)'$"):
        compile_grammar(COMPILER, "regex", "ab)", np.ones(len(ASCII), np.int64))


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
    with pytest.raises(GrammarError):
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
    """Before compilation, with what is allowed."""
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
