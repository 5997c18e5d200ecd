"""From the text of a grammar to the compiled one, or to the refusal that names its place.

Runs in the compile process: what it is given may take any time and any memory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.allowance import Allowance
from sluice_runtime.grammar.compile.parts import parts_of
from sluice_runtime.grammar.compile.said import (
    errors_caught,
    first_warning,
    plain_words,
    refusal,
    regex_refusal,
    schema_refusal,
)
from sluice_runtime.grammar.native import (
    RAW,
    CompiledGrammar,
    GrammarCompiler,
    GrammarMatcher,
    TokenizerInfo,
)
from sluice_runtime.messages import GrammarKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_WHITESPACE: Final = 32
"""Characters of white space between two words of JSON: enough to indent; a weak model that is
allowed more writes nothing else."""
_REHEARSED_TOKENS: Final = 64
_END: Final = 0
"""Stands for the end of an answer where a grammar is rehearsed."""
_BYTES: Final = [bytes([value]) for value in range(256)]
_SIMPLER: Final = "; write it without repeats within repeats such as (a{0,60}){0,60}"


def _json_schema(compiler: GrammarCompiler, text: str, strict: bool) -> CompiledGrammar:
    return compiler.compile_json_schema(text, True, None, None, strict, MOST_WHITESPACE, False)


_KINDS: Final[Mapping[GrammarKind, Callable[[GrammarCompiler, str], CompiledGrammar]]] = {
    "json_schema": lambda compiler, text: _json_schema(compiler, text, strict=True),
    "open_json_schema": lambda compiler, text: _json_schema(compiler, text, strict=False),
    "regex": lambda compiler, text: compiler.compile_regex(text),
    "ebnf": lambda compiler, text: compiler.compile_grammar_from_strings(text, "root"),
    "tags": lambda compiler, text: compiler.compile_structural_tag(text),
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
        with errors_caught() as warned:
            compiled = _KINDS[kind](compiler, text)
            can_begin = _rehearse(compiled, token_bytes)
    except (RuntimeError, ValueError) as error:
        raise _refused(kind, text, _words(error)) from None
    if warning := first_warning(warned.getvalue()):
        raise _refused(kind, text, warning)
    if not can_begin:
        raise refusal(kind, text, "no answer of this model can begin as it demands")
    return _written(compiled)


def _words(error: Exception) -> str:
    """Raises MemoryError if that is what it is."""
    said = plain_words(str(error))
    if said in ("", "std::bad_alloc"):
        raise MemoryError from None
    return said


def _refused(kind: GrammarKind, text: str, said: str) -> GrammarError:
    """With the place in a schema, where one part of it is not taken by itself either."""
    if kind in ("regex", "ebnf"):
        return refusal(kind, text, said)
    compiler = GrammarCompiler(TokenizerInfo(_BYTES, RAW, len(_BYTES), [], False), 1, False, 0)
    for part in parts_of(text, tagged=kind == "tags"):
        if not (why := _complaint(compiler, json.dumps(part.schema))):
            continue
        if part.pattern is not None:
            return regex_refusal(part.place, part.pattern, why)
        return schema_refusal(kind, part.place, part.value, why)
    return refusal(kind, text, said)


def _complaint(compiler: GrammarCompiler, schema: str) -> str:
    """What the library says of a schema; empty: nothing."""
    try:
        with errors_caught() as warned:
            _json_schema(compiler, schema, strict=True)
    except (RuntimeError, ValueError) as error:
        return _words(error)
    return first_warning(warned.getvalue())


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
            raise GrammarError(slow.error + _SIMPLER)
        if matcher.is_terminated():
            break
    return True
