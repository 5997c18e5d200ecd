"""A small vocabulary, its grammars, and rows of matchers with their masks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sluice_runtime.engine.device import HostDevice
from sluice_runtime.engine.sampling.masks import forbid
from sluice_runtime.grammar.constraint import CompiledGrammar
from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.grammar.vocabulary import tokenizer_of
from sluice_runtime.scheduler.batch import Batch, ForwardMode, RowAdded
from sluice_runtime.wire.messages import Generate, Grammar, Sampling

from tests.runtime.grammar.drawing import compiled_of

WORDS = [bytes([value]) for value in range(256)] + [b"ab", b"abc", b"12", b"", b""]


"""A vocabulary with tokens of several bytes, then two special ones."""


SIZE, EOS = len(WORDS), len(WORDS) - 1


PROMPT = [1, 2, 3]


PATTERNS = ["(ab|12){2,5}c?", "[a-c]*1[0-9]{3}", "x?(abc)+", "a|ab|abc"]


TOKENIZER = tokenizer_of(WORDS)


READ = [compiled_of("regex", pattern, TOKENIZER) for pattern in PATTERNS]


def compiled(pattern: int) -> CompiledGrammar:
    return CompiledGrammar(READ[pattern].compile(), READ[pattern].compile)


def allowed_after(pattern: int, tokens: Sequence[int]) -> set[int]:
    """By a matcher of its own that read all of `tokens`."""
    state = READ[pattern].matcher
    assert state.reset()
    assert state.try_consume_tokens(list(tokens)) == len(tokens)
    bits = np.unpackbits(np.frombuffer(state.compute_bitmask(), np.uint8), bitorder="little")
    ends = {EOS} if bits[SIZE] else set()
    return {int(token) for token in np.flatnonzero(bits[:SIZE])} | ends


def request(name: str) -> Generate:
    grammar = Grammar("regex", "", [EOS], "field")
    return Generate(name, PROMPT, 50, Sampling(), grammar=grammar)


def batch(added: Sequence[tuple[int, str]] = (), dropped: Sequence[int] = ()) -> Batch:
    rows = tuple(RowAdded(row, name, Sampling()) for row, name in added)
    return Batch(1, ForwardMode.DECODE, dropped_rows=tuple(dropped), added_rows=rows)


def matchers_of(**names: int) -> Matchers:
    """One row for each name, with the pattern of that number."""
    matchers = Matchers(SIZE)
    for name, pattern in names.items():
        matchers.open(request(name), compiled(pattern))
    matchers.follow(batch(list(enumerate(names))))
    return matchers


def mask(
    matchers: Matchers, logits: torch.Tensor, rows: Sequence[int], contexts: Sequence[int]
) -> None:
    if masks := matchers.masks(rows, contexts):
        forbid(logits, masks, HostDevice())


def masked(matchers: Matchers, row: int, answered: int) -> set[int]:
    logits = torch.zeros(1, SIZE)
    mask(matchers, logits, [row], [len(PROMPT) + answered])
    return set(logits[0].isfinite().nonzero().squeeze(1).tolist())


def tokens_of(text: str) -> list[int]:
    return list(text.encode())


def behind(matchers: Matchers, answer: list[int], drafts: list[int]) -> list[set[int]]:
    """What may be drawn behind an answer, and behind each of the drafts that follow it."""
    places = range(len(drafts) + 1)
    contexts = [len(PROMPT) + len(answer) + place for place in places]
    masks = matchers.masks([0] * len(places), contexts, [drafts[:place] for place in places])
    assert masks is not None
    assert masks.places == list(places)
    bits = np.unpackbits(masks.words.view(np.uint8), axis=1, bitorder="little")[:, :SIZE]
    return [set(np.flatnonzero(row).tolist()) for row in bits]
