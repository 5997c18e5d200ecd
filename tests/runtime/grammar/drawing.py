"""Answers to a compiled grammar, drawn at random, without an engine."""

from __future__ import annotations

import random

import numpy as np
from sluice_runtime.grammar.native import (
    RAW,
    CompiledGrammar,
    GrammarCompiler,
    GrammarMatcher,
    TokenizerInfo,
)

SIZE, EOS = 129, 128
MAX_TOKENS = 500
ASCII = [bytes([value]) for value in range(128)] + [b""]
TOKENIZER = TokenizerInfo(ASCII, RAW, SIZE, [], False)
COMPILER = GrammarCompiler(TOKENIZER, 1, False, 0)


def answer(compiled: CompiledGrammar, draw: random.Random) -> str | None:
    """An answer drawn at random; None when it is still going on after many tokens."""
    matcher = GrammarMatcher(compiled, [EOS], False, -1, None)
    text = bytearray()
    while len(text) < MAX_TOKENS:
        words = np.zeros((1, -(-SIZE // 32)), np.int32)
        matcher.fill_next_token_bitmask(words, 0, False)
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:SIZE]
        allowed = [int(token) for token in np.flatnonzero(bits)]
        assert allowed, f"a dead end after {text!r}"
        if EOS in allowed and (len(allowed) == 1 or draw.random() < 0.5):
            return text.decode()
        visible = [token for token in allowed if token > 32 and token != EOS] or allowed
        endings = [token for token in visible if chr(token) in '"}],0123'] or visible
        token = draw.choice(endings if len(text) > 80 else visible)
        assert matcher.accept_token(token, False)
        text.append(token)
    return None
