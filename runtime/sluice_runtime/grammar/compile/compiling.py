"""From the text of a grammar to the compiled one, and the library's complaints in plain words.

Runs in the compile process: what it is given may take any time and any memory.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.allowance import Allowance
from sluice_runtime.grammar.native import CompiledGrammar, GrammarCompiler, GrammarMatcher
from sluice_runtime.messages import GrammarKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_WHITESPACE: Final = 32
"""Characters of white space between two words of JSON: enough to indent; a weak model that is
allowed more writes nothing else."""
_PLACE: Final = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Warning: )?", re.MULTILINE)
_CHECK: Final = re.compile(r"^Check failed: .*? is false: ?", re.DOTALL)
_INTERNAL: Final = re.compile(r"std::|::Impl|\bis<|structural_tag|Failed to parse JSON")
"""What of the library's words is about itself, and not about what it was given."""
_REHEARSED_TOKENS: Final = 64
_END: Final = 0
"""Stands for the end of an answer where a grammar is rehearsed."""
_MOST_SAID: Final = 300
_MOST_SHOWN: Final = 60


def _json_schema(compiler: GrammarCompiler, text: str, strict: bool) -> CompiledGrammar:
    return compiler.compile_json_schema(text, True, None, None, strict, MOST_WHITESPACE, False)


_KINDS: Final[Mapping[GrammarKind, Callable[[GrammarCompiler, str], CompiledGrammar]]] = {
    "json_schema": lambda compiler, text: _json_schema(compiler, text, strict=True),
    "open_json_schema": lambda compiler, text: _json_schema(compiler, text, strict=False),
    "regex": lambda compiler, text: compiler.compile_regex(text),
    "ebnf": lambda compiler, text: compiler.compile_grammar_from_strings(text, "root"),
    "tags": lambda compiler, text: compiler.compile_structural_tag(text),
}


_ALLOWED: Final[Mapping[GrammarKind, str]] = {
    "json_schema": "a JSON schema that answers can be held to",
    "open_json_schema": "a JSON schema that answers can be held to",
    "regex": "a regular expression without lookaround, back-references and classes such as \\p{L}",
    "ebnf": "a grammar in EBNF, from its rule root",
    "tags": "parameters whose schema answers can be held to",
}


def compile_grammar(
    compiler: GrammarCompiler, kind: GrammarKind, text: str, token_bytes: NDArray[np.int64]
) -> str:
    """The compiled grammar, written down; an answer to it can begin. `token_bytes`: how many each
    token of the vocabulary stands for.

    Raises:
        GrammarError: the text is no such grammar, or the library cannot do what it asks for.
        MemoryError: there is not enough for it.
    """
    try:
        compiled = _KINDS[kind](compiler, text)
        can_begin = _rehearse(compiled, token_bytes)
    except (RuntimeError, ValueError) as error:
        said = plain_words(str(error))
        if said in ("", "std::bad_alloc"):
            raise MemoryError from None
        raise _refusal(kind, text, said) from None
    if not can_begin:
        raise _refusal(kind, text, "no answer of this model can begin as it demands")
    return _written(compiled)


def _refusal(kind: GrammarKind, text: str, said: str) -> GrammarError:
    """`said`: by the library, in plain words, or by us."""
    why = _CHECK.sub("", said)
    if not why or _INTERNAL.search(why):
        why = "it cannot be compiled"
    shown = json.dumps(text[:_MOST_SHOWN], ensure_ascii=False) + ": "
    given = shown if kind in ("regex", "ebnf") else ""
    return GrammarError(f"{given}{why.rstrip('.')}; allowed: {_ALLOWED[kind]}")


def _written(compiled: CompiledGrammar) -> str:
    try:
        return str(compiled.serialize_json())
    except RuntimeError:
        raise MemoryError from None


def _rehearse(compiled: CompiledGrammar, token_bytes: NDArray[np.int64]) -> bool:
    """Follows the grammar for some tokens, the longest that it allows, which cost most; whether an
    answer can begin. What takes forever does so within the limits of this process.

    Raises:
        GrammarError: it is too slow to follow.
    """
    allowance = Allowance()
    words = np.zeros((1, -(-len(token_bytes) // 32)), np.int32)
    matcher = GrammarMatcher(compiled, [_END], False, -1, None)
    worth = token_bytes + 2
    worth[_END] = 1
    for number in range(_REHEARSED_TOKENS):
        began = time.thread_time()
        matcher.fill_next_token_bitmask(words, 0, False)
        seconds = time.thread_time() - began
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(token_bytes)]
        if not bits.any():
            return number > 0
        token = int(np.argmax(bits * worth))
        began = time.thread_time()
        matcher.accept_token(token, False)
        if slow := allowance.took(seconds + time.thread_time() - began):
            raise GrammarError(slow.error)
        if matcher.is_terminated():
            break
    return True


def plain_words(said: str) -> str:
    """What the library said, in one line, without where in its sources it said so."""
    return " ".join(_PLACE.sub("", said).split())[:_MOST_SAID]
