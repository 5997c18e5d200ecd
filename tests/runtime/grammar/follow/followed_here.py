"""Grammars followed without another process."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from sluice_runtime.grammar.follow.follower import Followed
from sluice_runtime.grammar.follow.following import Following
from sluice_runtime.grammar.follow.turns import Turn, Turned
from sluice_runtime.grammar.native import CompiledGrammar, TokenizerInfo

LINES = 64


class FollowerHere:
    """As `process.FollowerProcess`, in this one."""

    def __init__(self, tokenizer: bytes, size: int, clock: Callable[[], float]) -> None:
        self._tokenizer = TokenizerInfo.deserialize_json(tokenizer.decode())
        self.grammars: dict[int, CompiledGrammar] = {}
        self._followed = Followed(self.grammars, clock)
        self.masks = np.zeros((LINES, -(-size // 32)), np.int32)

    def keep(self, grammar: int, text: bytes) -> str:
        self.grammars[grammar] = CompiledGrammar.deserialize_json(text.decode(), self._tokenizer)
        return ""

    def turn(self, turn: Turn) -> Turned:
        return self._followed.turn(turn, self.masks)

    def kill(self) -> None: ...

    def close(self) -> None: ...


def followed_here(size: int, clock: Callable[[], float] = time.thread_time) -> Following:
    """`size`: of the vocabulary."""
    return Following(lambda tokenizer: FollowerHere(tokenizer, size, clock))
