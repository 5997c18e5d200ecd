"""Masks: what they let through, and that a matcher follows its answer wherever it goes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sluice_runtime.engine.device import HostDevice
from sluice_runtime.engine.sampling.draw import sample
from sluice_runtime.engine.sampling.masks import forbid
from sluice_runtime.grammar.allowance import FREE_SECONDS, MAX_STEP_SECONDS, crowding
from sluice_runtime.grammar.follow.mask_worker_pool import MaskWorkerPool
from sluice_runtime.grammar.follow.matchers import Matchers
from sluice_runtime.grammar.keys import KeptGrammar
from sluice_runtime.grammar.native import (
    RAW,
    CompiledGrammar,
    GrammarCompiler,
    GrammarMatcher,
    TokenizerInfo,
)
from sluice_runtime.scheduler.batch import NO_TOKEN, Batch, ForwardMode, RowAdded
from sluice_runtime.wire.messages import Generate, Grammar, Sampling

from tests.examples import examples
from tests.runtime.engine.sampling.parameters import rows_of
from tests.runtime.grammar.follow.mask_worker_here import MaskWorkerHere, mask_workers_here

WORDS = [bytes([value]) for value in range(256)] + [b"ab", b"abc", b"12", b"", b""]
"""A vocabulary with tokens of several bytes, then two special ones."""
SIZE, EOS = len(WORDS), len(WORDS) - 1
PROMPT = [1, 2, 3]
PATTERNS = ["(ab|12){2,5}c?", "[a-c]*1[0-9]{3}", "x?(abc)+", "a|ab|abc"]

TOKENIZER = TokenizerInfo(WORDS, RAW, SIZE, [], False)
COMPILER = GrammarCompiler(TOKENIZER, 1, False, 0)
COMPILED = [COMPILER.compile_regex(pattern) for pattern in PATTERNS]


def allowed_after(compiled: CompiledGrammar, tokens: Sequence[int]) -> set[int]:
    """By a matcher of its own that read all of `tokens`."""
    matcher = GrammarMatcher(compiled, [EOS], False, -1, None)
    assert all(matcher.accept_token(token, False) for token in tokens)
    words = np.zeros((1, -(-SIZE // 32)), np.int32)
    matcher.fill_next_token_bitmask(words, 0, False)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    return {int(token) for token in np.flatnonzero(bits[:SIZE])}


def request(name: str) -> Generate:
    grammar = Grammar("regex", "", [EOS], "field")
    return Generate(name, PROMPT, 50, Sampling(), grammar=grammar)


def batch(added: Sequence[tuple[int, str]] = (), dropped: Sequence[int] = ()) -> Batch:
    rows = tuple(RowAdded(row, name, Sampling()) for row, name in added)
    return Batch(1, ForwardMode.DECODE, dropped_rows=tuple(dropped), added_rows=rows)


def kept(pool: MaskWorkerPool, compiled: CompiledGrammar) -> KeptGrammar:
    text, tokenizer = compiled.serialize_json(), TOKENIZER.serialize_json()
    return pool.keep(text.encode(), tokenizer.encode())


def matchers_of(**names: int) -> Matchers:
    """One row for each name, with the pattern of that number."""
    pool = mask_workers_here(SIZE)
    matchers = Matchers(SIZE, pool)
    for name, pattern in names.items():
        matchers.open(request(name), kept(pool, COMPILED[pattern]))
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


ROW = st.tuples(
    st.sampled_from([0, 1, 2, 3, None]),
    st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    st.sampled_from([1.0, 0.9, 0.1]),
    st.sampled_from([-1, 1, 3]),
)


@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(ROW, min_size=1, max_size=5), st.integers(0, 2**32), st.integers(0, 4))
def test_a_drawn_token_is_never_one_that_the_grammar_forbids(
    rows: list[tuple[int | None, float, float, int]], seed: int, broken: int
) -> None:
    """`broken`: the row whose logits are no numbers. A row whose grammar was given up, as it may be
    on a busy machine, has no mask any more, and its request ends."""
    pool, torch_seed = mask_workers_here(SIZE), torch.Generator().manual_seed(seed)
    matchers = Matchers(SIZE, pool)
    answers: dict[int, list[int]] = {}
    for row, (pattern, *_) in enumerate(rows):
        if pattern is not None:
            matchers.open(request(str(row)), kept(pool, COMPILED[pattern]))
            answers[row] = []
    matchers.follow(batch([(row, str(row)) for row in range(len(rows))]))
    live = list(range(len(rows)))
    for step in range(12):
        logits = torch.randn(len(live), SIZE, generator=torch_seed) * 10
        if broken in live:
            logits[live.index(broken)] = torch.nan
        contexts = torch.tensor([len(PROMPT) + step] * len(live))
        before = logits.clone()
        mask(matchers, logits, live, contexts.tolist())
        temperature, top_p, top_k = zip(*(rows[row][1:] for row in live), strict=True)
        parameters = rows_of(
            len(live),
            SIZE,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            position=contexts.tolist(),
        )
        drawn = sample(logits.clone(), parameters).tolist()
        matchers.accepting(live)(drawn)
        given_up = {int(slow.request_id) for slow in matchers.take_slow(step=10**9)}
        for place, (row, token) in enumerate(zip(live, drawn, strict=True)):
            pattern = rows[row][0]
            if row in given_up:
                continue
            if row == broken:
                assert token == NO_TOKEN
            elif pattern is None:
                assert torch.equal(before[place], logits[place])
            else:
                assert token in allowed_after(COMPILED[pattern], answers[row])
                answers[row].append(token)
        going_on = zip(live, drawn, strict=True)
        ended = {row for row, token in going_on if token in (EOS, NO_TOKEN)} | given_up
        live = [row for row in live if row not in ended]
        if not live:
            return


def test_a_complete_answer_may_only_end() -> None:
    matchers = matchers_of(one=3)
    assert masked(matchers, 0, 0) == {ord("a"), WORDS.index(b"ab"), WORDS.index(b"abc")}
    matchers.accepting([0])([WORDS.index(b"ab")])
    assert masked(matchers, 0, 1) == {ord("c"), EOS}
    matchers.accepting([0])([ord("c")])
    assert masked(matchers, 0, 2) == {EOS}


def test_a_row_in_flight_after_its_end_is_unconstrained() -> None:
    matchers = matchers_of(one=3)
    for token in (ord("a"), EOS):
        matchers.accepting([0])([token])
    matchers.close("one")
    assert len(masked(matchers, 0, 2)) == SIZE
    matchers.accepting([0])([5])
    matchers.follow(batch([(0, "another")], dropped=[0]))
    assert len(masked(matchers, 0, 0)) == SIZE


def test_a_row_that_drew_nothing_is_unconstrained() -> None:
    matchers = matchers_of(one=0)
    matchers.accepting([0])([NO_TOKEN])
    assert len(masked(matchers, 0, 1)) == SIZE


def test_a_matcher_follows_its_request_into_another_row() -> None:
    matchers = matchers_of(one=0)
    for step, token in enumerate(tokens_of("ab1")):
        assert token in masked(matchers, 0, step)
        matchers.accepting([0])([token])
    matchers.follow(batch(dropped=[0]))
    matchers.follow(batch([(4, "one")]))
    assert masked(matchers, 4, 3) == {ord("2")}


@pytest.mark.parametrize("number", range(7))
def test_tokens_that_were_drawn_and_not_kept_are_rolled_back(number: int) -> None:
    matchers, answer = matchers_of(one=0), tokens_of("ab12ab")
    for step, token in enumerate(answer):
        masked(matchers, 0, step)
        matchers.accepting([0])([token])
    matchers.follow(batch([(2, "one")], dropped=[0]))
    assert masked(matchers, 2, number) == allowed_after(COMPILED[0], answer[:number])


def test_the_end_is_rolled_back_too() -> None:
    matchers = matchers_of(one=3)
    for token in (ord("a"), EOS):
        matchers.accepting([0])([token])
    assert masked(matchers, 0, 1) == {ord("b"), EOS}


def test_unused_grammars_are_forgotten() -> None:
    workers: list[MaskWorkerHere] = []

    def start(tokenizer: bytes) -> MaskWorkerHere:
        workers.append(MaskWorkerHere(tokenizer, SIZE, time.thread_time))
        return workers[-1]

    pool = MaskWorkerPool(start)
    matchers = Matchers(SIZE, pool)
    matchers.open(request("one"), kept(pool, COMPILED[0]))
    matchers.follow(batch([(0, "one")]))
    for number in (1, 2):
        grammar = kept(pool, COMPILED[number])
        masked(matchers, 0, 0)
        assert len(workers[0].grammars) == 2
        del grammar
    masked(matchers, 0, 0)
    assert len(workers[0].grammars) == 1


def drawn(pattern: str, least: int, **fields: Any) -> bytes:
    """An answer whose end is drawn whenever it may be, and else the smallest token."""
    compiled = COMPILER.compile_regex(pattern)
    grammar = Grammar("regex", "", [EOS], "field", **fields)
    message = Generate("a", PROMPT, 50, Sampling(), stop_token_ids=[EOS], grammar=grammar)
    pool = mask_workers_here(SIZE)
    matchers = Matchers(SIZE, pool)
    matchers.open(message, kept(pool, compiled))
    matchers.follow(batch([(0, "a")]))
    answer: list[int] = []
    while not answer or answer[-1] != EOS:
        logits = torch.zeros(1, SIZE)
        mask(matchers, logits, [0], [len(PROMPT) + len(answer)])
        allowed = torch.isfinite(logits[0]).nonzero().flatten().tolist()
        answer.append(EOS if EOS in allowed else allowed[0])
        matchers.accepting([0])(answer[-1:])
        assert len(answer) < 40
    assert len(answer) > least
    return b"".join(WORDS[token] for token in answer)


def test_an_answer_may_be_kept_open_while_it_can_go_on() -> None:
    assert drawn("a{1,30}", 0) == b"a"
    assert drawn("[ab]{1,9}", 5, min_tokens=5) == b"aaaaa"
    assert drawn("a|[0-9]", 1, min_tokens=5) == b"0"
    assert len(drawn("[xy]{1,9}", 9, ends_late=True)) == 9


class Stopwatch:
    """A thread's clock: each call that is timed takes what `costs` says next."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self._now, self._inside = 0.0, False

    def __call__(self) -> float:
        if self._inside:
            self._now += self.costs.pop(0) if self.costs else 0.0
        self._inside = not self._inside
        return self._now


def timed(rows: int) -> tuple[Matchers, Stopwatch]:
    clock = Stopwatch()
    pool = mask_workers_here(SIZE, clock)
    matchers = Matchers(SIZE, pool)
    for row in range(rows):
        matchers.open(request(str(row)), kept(pool, COMPILED[1]))
    matchers.follow(batch([(row, str(row)) for row in range(rows)]))
    return matchers, clock


def step(matchers: Matchers, rows: int, answered: int) -> list[int]:
    """One step in which all rows draw an "a"; how many tokens each might have drawn."""
    logits = torch.zeros(rows, SIZE)
    mask(matchers, logits, range(rows), [len(PROMPT) + answered] * rows)
    matchers.accepting(range(rows))([ord("a")] * rows)
    return [int(count) for count in logits.isfinite().sum(1)]


def test_a_row_whose_grammar_is_slow_is_given_up_alone() -> None:
    matchers, clock = timed(3)
    allowed = step(matchers, 3, 0)[0]
    clock.costs = [0, 0.051, 0]
    assert step(matchers, 3, 1) == [allowed, SIZE, allowed]
    (slow,) = matchers.take_slow(step=10**9)
    assert (slow.request_id, slow.field, slow.why.reason) == ("1", "field", "slow")
    assert "50 ms of a processor" in slow.why.error
    assert step(matchers, 3, 2) == [allowed, SIZE, allowed]
    assert matchers.take_slow(step=10**9) == []


def test_a_row_given_up_in_a_later_step_is_not_reported_early() -> None:
    """What the step before it drew still counts."""
    matchers, clock = timed(1)
    for number in (1, 2):
        matchers.follow(Batch(number, ForwardMode.DECODE))
        clock.costs = [0.051 * (number - 1)]
        step(matchers, 1, number - 1)
    assert matchers.take_slow(step=1) == []
    assert [slow.request_id for slow in matchers.take_slow(step=2)] == ["0"]


def test_a_row_is_given_up_for_its_mean_and_not_for_one_slow_token() -> None:
    matchers, clock = timed(1)
    answered = 0
    for cost in (0.049, *[0.014] * 40):
        clock.costs = [cost]
        step(matchers, 1, answered)
        answered += 1
        assert matchers.take_slow(step=10**9) == []
    while not (slow := matchers.take_slow(step=10**9)):
        clock.costs = [0.03]
        step(matchers, 1, answered)
        answered += 1
        assert answered < 60
    assert "15 ms of a processor a token" in slow[0].why.error


def test_of_many_slow_rows_the_slowest_are_given_up() -> None:
    matchers, clock = timed(10)
    clock.costs = [0.0099, 0.015, *[0.0099] * 7, 0.04]
    step(matchers, 10, 0)
    assert [(slow.request_id, slow.why.reason) for slow in matchers.take_slow(step=10**9)] == [
        ("9", "crowded")
    ]


@given(st.lists(st.floats(0, 0.05), max_size=300))
def test_a_step_keeps_its_limit_or_all_its_rows_are_cheap(seconds: list[float]) -> None:
    chosen = crowding(seconds)
    left = [cost for place, cost in enumerate(seconds) if place not in chosen]
    assert len(set(chosen)) == len(chosen)
    assert sum(left) <= MAX_STEP_SECONDS or max(left) < FREE_SECONDS
    if chosen:
        assert sum(left) + seconds[chosen[-1]] > MAX_STEP_SECONDS - 1e-9
        assert min(seconds[place] for place in chosen) >= max([*left, FREE_SECONDS])


@pytest.mark.parametrize("generated", ["a", "ab", "ab12ab"])
def test_an_answer_that_another_engine_began_goes_on_in_its_grammar(generated: str) -> None:
    pool = mask_workers_here(SIZE)
    matchers = Matchers(SIZE, pool)
    asked = msgspec.structs.replace(request("r"), generated_ids=tokens_of(generated))
    matchers.open(asked, kept(pool, COMPILED[0]))
    matchers.follow(batch([(0, "r")]))
    allowed = masked(matchers, 0, len(generated))
    assert allowed == allowed_after(COMPILED[0], tokens_of(generated))
    assert not matchers.take_slow(step=1)


@pytest.mark.parametrize("generated", ["b", "ab1c", "abc"])
def test_an_answer_that_another_grammar_drew_is_refused(generated: str) -> None:
    pool = mask_workers_here(SIZE)
    matchers = Matchers(SIZE, pool)
    asked = msgspec.structs.replace(request("r"), generated_ids=tokens_of(generated))
    matchers.open(asked, kept(pool, COMPILED[0]))
    matchers.follow(batch([(0, "r")]))
    masked(matchers, 0, len(generated))
    (slow,) = matchers.take_slow(step=1)
    assert slow.why.own_fault
    assert "does not follow it" in slow.why.error
