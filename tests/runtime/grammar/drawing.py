"""Answers to a compiled grammar, drawn at random, without an engine."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from sluice_runtime.grammar.constraint import CompiledGrammar, compiled, refuse_unusable
from sluice_runtime.grammar.json_schema import usable_schema
from sluice_runtime.grammar.vocabulary import tokenizer_of
from sluice_runtime.wire.messages import GrammarKind

SIZE = 128
BEYOND_LIMITS = "s ::= " + " | ".join(f'"{number} " s' for number in range(2100))
"""A rule of EBNF with more alternatives than the library follows."""
MAX_TOKENS = 500
ASCII = tokenizer_of([bytes([value]) for value in range(SIZE)])
BYTES = tokenizer_of([bytes([value]) for value in range(256)])


def compiled_of(kind: GrammarKind, text: str, tokenizer: LLTokenizer = ASCII) -> CompiledGrammar:
    """A grammar that requests may have."""
    refuse_unusable(kind, text)
    return compiled(tokenizer, kind, text)


def matcher_of(kind: GrammarKind, text: str, tokenizer: LLTokenizer = ASCII) -> LLMatcher:
    """At the begin of an answer, of a grammar that requests may have."""
    return compiled_of(kind, text, tokenizer).matcher


def schema_matcher(
    schema: Any, *, closed: bool = True, tokenizer: LLTokenizer = ASCII
) -> LLMatcher:
    return matcher_of("json_schema", json.dumps(usable_schema(schema, closed=closed)), tokenizer)


def accepts(matcher: LLMatcher, tokens: Sequence[int]) -> bool:
    """Whether these tokens are a whole answer."""
    state = matcher.deep_copy()
    return state.try_consume_tokens(list(tokens)) == len(tokens) and state.is_accepting()


def answer(matcher: LLMatcher, draw: random.Random) -> str | None:
    """An answer drawn at random; None when it is still going on after many tokens."""
    state, text = matcher.deep_copy(), bytearray()
    while len(text) < MAX_TOKENS:
        mask = np.frombuffer(state.compute_bitmask(), np.uint8)
        assert not state.is_error(), f"{state.get_error()} after {text!r}"
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        assert allowed, f"a dead end after {text!r}"
        if SIZE in allowed and (len(allowed) == 1 or draw.random() < 0.5):
            return text.decode()
        visible = [token for token in allowed if 32 < token < SIZE] or allowed
        endings = [token for token in visible if chr(token) in '"}],0123'] or visible
        token = draw.choice(endings if len(text) > 80 else visible)
        assert state.consume_token(token)
        text.append(token)
    return None
