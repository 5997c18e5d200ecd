"""Compiles the text of one grammar, or says why it is refused.

Runs in the compile process: a grammar may take any time and any memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.allowance import Allowance
from sluice_runtime.grammar.compile.xgrammar_errors import captured_stderr, first_line, refusal
from sluice_runtime.grammar.native import CompiledGrammar, GrammarCompiler, GrammarMatcher
from sluice_runtime.wire.messages import GrammarKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_WHITESPACE: Final = 32
"""Characters of white space between two tokens of JSON: enough to indent; a weak model that may
write more writes nothing else."""
_REHEARSED_TOKENS: Final = 64
_END: Final = 0
"""The token that stands for the end of an answer in a rehearsal."""
_SIMPLER: Final = "; write it without repeats within repeats such as (a{0,60}){0,60}"


def _json_schema(compiler: GrammarCompiler, text: str, strict: bool) -> CompiledGrammar:
    return compiler.compile_json_schema(text, True, None, None, strict, MAX_WHITESPACE, False)


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
    """The compiled grammar, serialized. `token_bytes`: length of each token of the vocabulary.

    Raises:
        GrammarError: the text is no such grammar, no answer can begin with it, or the library would
            ignore a part of it.
        MemoryError: there is not enough for it.
    """
    try:
        with captured_stderr() as warnings:
            compiled = _KINDS[kind](compiler, text)
            can_begin = _rehearse(compiled, token_bytes)
    except (RuntimeError, ValueError) as error:
        raise _refused(kind, text, error) from None
    if warning := first_line(warnings.getvalue().decode(errors="replace")):
        raise refusal(kind, text, warning)
    if not can_begin:
        raise refusal(kind, text, "no answer of this model can begin as it demands")
    return _serialized(compiled)


def _refused(kind: GrammarKind, text: str, error: Exception) -> GrammarError:
    """Raises MemoryError if that is what it is."""
    reason = first_line(str(error))
    if reason in ("", "std::bad_alloc"):
        raise MemoryError from None
    return refusal(kind, text, reason)


def _serialized(compiled: CompiledGrammar) -> str:
    try:
        return str(compiled.serialize_json())
    except RuntimeError:
        raise MemoryError from None


def _rehearse(compiled: CompiledGrammar, token_bytes: NDArray[np.int64]) -> bool:
    """Matches some tokens, the longest allowed, as they cost most; returns whether an answer can
    begin. What never ends does so within the limits of this process.

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
