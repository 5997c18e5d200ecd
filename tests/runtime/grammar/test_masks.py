"""Masks: what they let through, and that a matcher follows its answer wherever it goes."""

from __future__ import annotations

import json
import random
import time
import weakref
from typing import Any, cast

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from llguidance import LLParserLimits
from sluice_runtime.engine.sampling.draw import sample
from sluice_runtime.grammar import constraint as constraint_module
from sluice_runtime.grammar import masks as masks_module
from sluice_runtime.grammar.json_schema import usable_schema
from sluice_runtime.grammar.masks import Matchers
from sluice_runtime.grammar.vocabulary import tokenizer_of
from sluice_runtime.grammar.waiting import CompileThread, GrammarQueue
from sluice_runtime.scheduler.batch import NO_TOKEN
from sluice_runtime.wire.messages import Generate, Grammar, Sampling

from tests.examples import examples
from tests.runtime.engine.sampling.parameters import rows_of
from tests.runtime.grammar.drawing import BEYOND_LIMITS, compiled_of
from tests.runtime.grammar.masking import (
    EOS,
    PROMPT,
    SIZE,
    TOKENIZER,
    WORDS,
    allowed_after,
    batch,
    behind,
    compiled,
    mask,
    masked,
    matchers_of,
    request,
    tokens_of,
)

ROW = st.tuples(
    st.sampled_from([0, 1, 2, 3, None]),
    st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    st.sampled_from([1.0, 0.9, 0.1]),
    st.sampled_from([-1, 1, 3]),
)


@examples(40, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(ROW, min_size=1, max_size=5),
    st.integers(0, 2**32),
    st.integers(0, 4),
    st.sampled_from([1, 4]),
)
def test_a_drawn_token_is_never_one_that_the_grammar_forbids(
    rows: list[tuple[int | None, float, float, int]], seed: int, broken: int, threads: int
) -> None:
    """`broken`: the row whose logits are no numbers."""
    torch_seed = torch.Generator().manual_seed(seed)
    matchers = Matchers(SIZE, threads)
    answers: dict[int, list[int]] = {}
    for row, (pattern, *_) in enumerate(rows):
        if pattern is not None:
            matchers.open(request(str(row)), compiled(pattern))
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
        assert not matchers.take_given_up(step=10**9)
        for place, (row, token) in enumerate(zip(live, drawn, strict=True)):
            pattern = rows[row][0]
            if row == broken:
                assert token == NO_TOKEN
            elif pattern is None:
                assert torch.equal(before[place], logits[place])
            else:
                assert token in allowed_after(pattern, answers[row])
                answers[row].append(token)
        going_on = zip(live, drawn, strict=True)
        ended = {row for row, token in going_on if token in (EOS, NO_TOKEN)}
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
    assert masked(matchers, 2, number) == allowed_after(0, answer[:number])


def test_the_end_is_rolled_back_too() -> None:
    matchers = matchers_of(one=3)
    for token in (ord("a"), EOS):
        matchers.accepting([0])([token])
    assert masked(matchers, 0, 1) == {ord("b"), EOS}


@examples(60)
@given(st.integers(0, 3), st.randoms(use_true_random=False))
def test_masks_behind_drafts_are_those_of_an_answer_that_has_them(
    pattern: int, draw: random.Random
) -> None:
    """Right and wrong ones; where one is forbidden nothing may follow it."""
    matchers = Matchers(SIZE)
    matchers.open(request("r"), compiled(pattern))
    matchers.follow(batch([(0, "r")]))
    answer: list[int] = []
    for _ in range(6):
        drafts: list[int] = []
        expected = [allowed_after(pattern, answer)]
        while len(drafts) < 3 and EOS not in drafts:
            known = sorted(expected[-1])
            wrong = draw.randrange(SIZE)
            drafts.append(draw.choice([*known, wrong]) if known else wrong)
            if drafts[-1] not in expected[-1]:
                expected.append(set())
                break
            after = [*answer, *drafts]
            ends = drafts[-1] == EOS
            expected.append(set(range(SIZE)) if ends else allowed_after(pattern, after))
        for _ in range(draw.choice([1, 2])):
            assert behind(matchers, answer, drafts) == expected
        kept = draw.randint(0, sum(map(bool, expected[1:])))
        token = draw.choice(sorted(expected[kept]))
        matchers.accepting([0] * (len(drafts) + 1))([*drafts[:kept], token, *drafts[kept:]])
        answer += [*drafts[:kept], token]
        if EOS in answer:
            break
    assert not matchers.take_given_up(10**9)


def test_a_grammar_that_fails_at_a_draft_is_not_given_up_for_it() -> None:
    """The answer may take another way."""
    matchers = Matchers(SIZE)
    text = 'root ::= "a" ("bb" | "c" s)\n' + BEYOND_LIMITS
    matchers.open(request("r"), compiled_of("ebnf", text, TOKENIZER))
    matchers.follow(batch([(0, "r")]))
    a, b, c = tokens_of("abc")
    assert behind(matchers, [], [a, c, b])[2:] == [set(), set()]
    matchers.accepting([0] * 4)([a, b, NO_TOKEN, NO_TOKEN])
    assert behind(matchers, [a, b], []) == [{b}]
    matchers.accepting([0])([b])
    assert behind(matchers, [a, b, b], [EOS]) == [{EOS}, set()], "it looks ahead no more"
    assert not matchers.take_given_up(10**9)


@pytest.mark.parametrize(("states", "least", "known_least"), [(800, 88, 50), (2000, 50, 100)])
def test_drafts_do_not_use_up_what_an_answer_may_take(
    monkeypatch: pytest.MonkeyPatch, states: int, least: int, known_least: int
) -> None:
    """Without drafts a matcher is made anew after 88 or 221 tokens, with them a few earlier: in the
    first case that is less than the least, and it looks ahead no more."""
    monkeypatch.setattr(masks_module, "MIN_RENEWED_TOKENS", least)
    limits = LLParserLimits(step_max_items=30_000, max_lexer_states=states, verbose_errors=False)
    monkeypatch.setattr(constraint_module, "LIMITS", limits)
    matchers, draw = Matchers(SIZE), random.Random(1)
    text = json.dumps(usable_schema({"type": "string", "maxLength": 600}))
    matchers.open(request("r"), compiled_of("json_schema", text, TOKENIZER))
    matchers.follow(batch([(0, "r")]))
    answer, known = [ord('"')], 0
    behind(matchers, [], [])
    matchers.accepting([0])(answer)
    while len(answer) < states // 6:
        drafts = [draw.choice(tokens_of("aaä9\\")) for _ in range(4)]
        allowed = behind(matchers, answer, drafts)
        assert not matchers.take_given_up(10**9)
        assert ord("a") in allowed[0]
        known += bool(allowed[1])
        matchers.accepting([0] * 5)([ord("a"), *[NO_TOKEN] * 4])
        answer.append(ord("a"))
    assert known_least < known < (least if states < 1000 else states)


def drawn(pattern: str, least: int, **fields: Any) -> bytes:
    """An answer whose end is drawn whenever it may be, and else the smallest token."""
    grammar = Grammar("regex", "", [EOS], "field", **fields)
    message = Generate("a", PROMPT, 50, Sampling(), stop_token_ids=[EOS], grammar=grammar)
    matchers = Matchers(SIZE)
    matchers.open(message, compiled_of("regex", pattern, TOKENIZER))
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


def test_a_token_that_ends_answers_is_no_text_of_a_form() -> None:
    ends = WORDS.index(b"ab")
    grammar = Grammar("regex", "", [ends], "field")
    matchers = Matchers(SIZE)
    matchers.open(msgspec.structs.replace(request("r"), grammar=grammar), compiled(0))
    matchers.follow(batch([(0, "r")]))
    assert ends in allowed_after(0, [])
    assert masked(matchers, 0, 0) == allowed_after(0, []) - {ends}


@pytest.mark.parametrize("generated", ["a", "ab", "ab12ab"])
def test_an_answer_that_another_engine_began_goes_on_in_its_grammar(generated: str) -> None:
    matchers = Matchers(SIZE)
    asked = msgspec.structs.replace(request("r"), generated_ids=tokens_of(generated))
    matchers.open(asked, compiled(0))
    matchers.follow(batch([(0, "r")]))
    allowed = masked(matchers, 0, len(generated))
    assert allowed == allowed_after(0, tokens_of(generated))
    assert not matchers.take_given_up(step=1)


@pytest.mark.parametrize("generated", ["b", "ab1c", "abc"])
def test_an_answer_that_another_grammar_drew_is_refused(generated: str) -> None:
    matchers = Matchers(SIZE)
    asked = msgspec.structs.replace(request("r"), generated_ids=tokens_of(generated))
    matchers.open(asked, compiled(0))
    matchers.follow(batch([(0, "r")]))
    masked(matchers, 0, len(generated))
    (slow,) = matchers.take_given_up(step=1)
    assert slow.why.reason == "stuck"
    assert "does not follow it" in slow.why.error


def test_every_answer_of_a_grammar_with_many_states_has_a_matcher_of_its_own() -> None:
    """Copies of one compiled grammar count their states together."""
    thread = CompileThread(lambda: WORDS, lambda: None)
    matchers = Matchers(SIZE)
    queue = GrammarQueue(thread, matchers, 2)
    thread.warm_up()
    draw = random.Random(1)
    grammar = Grammar("regex", ".{0,100}[0-9].{0,100}", [EOS], "field")
    for number in range(40):
        name = f"r{number}"
        queue.add(Generate(name, PROMPT, 50, Sampling(), grammar=grammar))
        while not (released := queue.released()).ready:
            assert not released.ended
            time.sleep(0.001)
        matchers.follow(batch([(0, name)], dropped=[0]))
        for answered in range(40):
            masks = matchers.masks([0], [len(PROMPT) + answered])
            assert not queue.given_up(1)
            assert masks is not None
            bits = np.unpackbits(masks.words.view(np.uint8), bitorder="little")[:EOS]
            allowed = np.flatnonzero(bits)
            if not len(allowed):
                break
            matchers.accepting([0])([int(draw.choice(allowed))])
        held = weakref.ref(matchers._requests[name])
        queue.ended(name)
        matchers.follow(batch(dropped=[0]))
        assert held() is None
    thread.close()


def test_what_the_library_says_and_nobody_knows_is_its_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            said = "panic: index too large" if name == "get_error" else True
            return lambda *_: said

    monkeypatch.setattr(masks_module, "fill_next_token_bitmask", lambda *_: None)
    matchers = matchers_of(one=0)
    matchers._requests["one"]._state = cast(Any, Broken())
    masked(matchers, 0, 0)
    (given_up,) = matchers.take_given_up(step=1)
    assert given_up.why.reason == "failed"
    assert "index too large" in caplog.text


@pytest.mark.parametrize("text", ["abc", "é", "xab"])
def test_text_that_must_follow_is_spelled_with_the_vocabularys_own_ids(text: str) -> None:
    """In most vocabularies a byte is not its token's id."""
    words = [bytes([255 - value]) for value in range(256)] + [b"ab", b"abc", b"xa"]
    matchers = Matchers(len(words))
    matchers.open(request("r"), compiled_of("regex", text, tokenizer_of(words)))
    matchers.follow(batch([(0, "r")]))
    masks = matchers.masks([0], [len(PROMPT)])
    assert masks is not None
    bits = np.unpackbits(masks.words.view(np.uint8), bitorder="little")[: len(words)]
    allowed = [words[token] for token in np.flatnonzero(bits)]
    assert allowed
    assert all(text.encode().startswith(word) for word in allowed)
