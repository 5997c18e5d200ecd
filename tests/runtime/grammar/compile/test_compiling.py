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
from sluice_runtime.messages import GrammarKind

ASCII = [bytes([value]) for value in range(128)] + [b""]
COMPILER = GrammarCompiler(TokenizerInfo(ASCII, RAW, len(ASCII), [], False), 1, False, 0)

SCHEMA = "a JSON schema that answers can be held to"
INTERNALS = re.compile(r"Check failed|std::|Impl|is<|structural_tag|json_schema")


def called(schema: Any) -> str:
    form = {"type": "json_schema", "json_schema": schema}
    return json.dumps({"type": "structural_tag", "format": form})


REFUSED: list[tuple[GrammarKind, str, str]] = [
    ("regex", "(a", '"(a": Regex parsing error at position 3: The parenthesis is not closed; all'),
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
        '{"type": "string", "pattern": "^.{0,2147483648}$"}',
        "Invalid repetition range {0, -2147483648}; allowed: ",
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
