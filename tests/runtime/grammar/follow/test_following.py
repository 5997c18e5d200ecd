"""The process that follows grammars, and what becomes of answers when it is stuck or gone."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from sluice_runtime.errors import CompileKilledError, GrammarProcessError
from sluice_runtime.grammar.follow.aside import MOST_LEFT
from sluice_runtime.grammar.follow.following import Follower, Following
from sluice_runtime.grammar.follow.matchers import Matchers
from sluice_runtime.grammar.follow.process import FollowerProcess, FollowerSizes
from sluice_runtime.grammar.keys import KeptGrammar
from sluice_runtime.grammar.native import RAW, GrammarCompiler, TokenizerInfo
from sluice_runtime.messages import Generate, Grammar, Sampling
from sluice_runtime.scheduler.batch import Batch, ForwardMode, RowAdded

pytestmark = pytest.mark.process

WORDS = [bytes([value]) for value in range(256)]
WORDS += [b"a" * length for length in range(2, 65)] + [b""]
SIZE, EOS = len(WORDS), len(WORDS) - 1
TOKENIZER = TokenizerInfo(WORDS, RAW, SIZE, [], False)
COMPILER = GrammarCompiler(TokenizerInfo(WORDS, RAW, SIZE, [], False), 1, False, 0)
ENDLESS = "[xy]{5}(a{0,60}){0,60}b"
"""Compiles at once; behind the fifth letter one mask takes minutes."""
LETTERS = "(xyz){100}"
PROMPT = [1, 2, 3]


@pytest.fixture
def started() -> list[FollowerProcess]:
    """All processes that `following` starts."""
    return []


@pytest.fixture
def following(started: list[FollowerProcess]) -> Iterator[Following]:
    sizes = FollowerSizes(lines=32, words=-(-SIZE // 32), memory_bytes=1 << 30)

    def start(tokenizer: bytes) -> FollowerProcess:
        started.append(FollowerProcess(sizes, tokenizer))
        return started[-1]

    following = Following(start)
    yield following
    following.close()
    until(lambda: all(process._process.returncode is not None for process in started))


def kept(following: Following, pattern: str) -> KeptGrammar:
    text = COMPILER.compile_regex(pattern).serialize_json()
    return following.keep(text.encode(), TOKENIZER.serialize_json().encode())


class Answers:
    """A request for each pattern, by its place; all draw the first letter that they may."""

    def __init__(self, following: Following, *patterns: str, shared: bool = True) -> None:
        self.matchers = Matchers(SIZE, following)
        self._rows = range(len(patterns))
        self._answered = 0
        known: dict[str, KeptGrammar] = {}
        for row, pattern in enumerate(patterns):
            if not shared or pattern not in known:
                known[pattern] = kept(following, pattern)
            message = Generate(
                str(row), PROMPT, 50, Sampling(), grammar=Grammar("regex", pattern, [EOS], "field")
            )
            self.matchers.open(message, known[pattern])
        added = tuple(RowAdded(row, str(row), Sampling()) for row in self._rows)
        self.matchers.follow(Batch(1, ForwardMode.DECODE, added_rows=added))

    def step(self) -> str:
        """What each drew; "?" where all was allowed."""
        logits = torch.zeros(len(self._rows), SIZE)
        contexts = torch.full((len(self._rows),), len(PROMPT) + self._answered)
        self.matchers.mask(logits, self._rows, contexts)
        allowed = [row.isfinite().nonzero().flatten().tolist() for row in logits]
        self.matchers.advance(self._rows, [tokens[0] for tokens in allowed])
        self._answered += 1
        return "".join("?" if len(tokens) == SIZE else chr(tokens[0]) for tokens in allowed)

    def expected(self) -> str:
        """What one with `LETTERS` draws next."""
        return "xyz"[self._answered % 3]

    def given_up(self) -> list[tuple[str, str]]:
        return [(slow.request_id, slow.why.reason) for slow in self.matchers.take_slow(step=10**9)]


def until(holds: Callable[[], object]) -> None:
    ends = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


def pid(process: Follower | None) -> int:
    assert isinstance(process, FollowerProcess)
    return process._process.pid


def test_nobody_waits_for_a_mask_that_takes_minutes(
    following: Following, started: Sequence[FollowerProcess]
) -> None:
    answers = Answers(following, ENDLESS, LETTERS)
    given_up: list[tuple[str, str]] = []
    while not given_up:
        letter = answers.expected()
        assert answers.step()[1] == letter
        given_up += answers.given_up()
    assert given_up == [("0", "slow")]
    until(lambda: len(started) == 2 and started[0]._process.returncode is not None)
    for _ in range(7):
        letter = answers.expected()
        assert answers.step() == "?" + letter
    assert answers.given_up() == []
    assert following.refusal() is None


def test_answers_are_told_to_the_next_process_beside_the_steps(following: Following) -> None:
    answers = Answers(following, ENDLESS, LETTERS)
    while not answers.given_up():
        answers.step()
    first = following._current
    until(lambda: following._current is not first)
    letter = answers.expected()
    assert answers.step() == "?" + letter
    assert not answers.matchers._requests["1"].replayed


def test_nobody_new_is_followed_beside_too_many_that_are_stuck(following: Following) -> None:
    answers = Answers(following, ENDLESS, LETTERS, ENDLESS)
    while not answers.given_up():
        assert following.refusal() is None
        answers.step()
    assert "is stuck" in (following.refusal() or "")
    until(lambda: following.refusal() is None)
    letter = answers.expected()
    assert answers.step() == f"?{letter}?"


def test_answers_end_with_their_process_and_the_next_are_followed(
    following: Following, started: Sequence[FollowerProcess]
) -> None:
    answers = Answers(following, LETTERS, LETTERS)
    answers.step()
    os.kill(pid(started[0]), signal.SIGKILL)
    until(lambda: answers.step() == "??")
    assert answers.given_up() == [("0", "lost"), ("1", "lost")]
    until(lambda: following.refusal() is None)
    assert Answers(following, LETTERS).step() == "x"
    assert len(started) == 2


def test_a_process_that_cannot_be_replaced_is_tried_again(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(following, LETTERS)
    answers.step()
    good, tried = sys.executable, list[str]()
    monkeypatch.setattr(sys, "executable", "/nowhere")
    os.kill(pid(following._current), signal.SIGKILL)
    until(lambda: answers.given_up() or not answers.step())
    for _ in range(3):
        tried.append(following.refusal() or "")
        until(lambda: following._succession is None)
    assert all("has ended" in why for why in tried)
    monkeypatch.setattr(sys, "executable", good)
    until(lambda: following.refusal() is None)
    assert Answers(following, LETTERS).step() == "x"


def test_a_process_that_was_killed_at_rest_is_replaced_for_the_next_grammar(
    following: Following, started: Sequence[FollowerProcess]
) -> None:
    answers = Answers(following, LETTERS)
    answers.step()
    os.kill(pid(started[0]), signal.SIGKILL)
    assert Answers(following, "[ab]").step() == "a"
    assert answers.step() == "y"
    assert len(started) == 2


def test_a_process_without_memory_for_a_grammar_is_replaced_by_one_that_has_what_is_used(
    following: Following, started: Sequence[FollowerProcess]
) -> None:
    answers, tokenizer = Answers(following, LETTERS), TOKENIZER.serialize_json().encode()
    answers.step()
    with pytest.raises(CompileKilledError, match="grammarCompileBytes"):
        following.keep(b"{}", tokenizer)  # as one that there is no memory for
    assert len(started) == 2
    for _ in range(4):
        letter = answers.expected()
        assert answers.step() == letter
    assert answers.given_up() == []


def test_others_beside_many_of_one_grammar_that_takes_minutes_go_on(following: Following) -> None:
    answers = Answers(following, *[ENDLESS] * 20, LETTERS)
    while not (given_up := answers.given_up()):
        assert answers.step()[-1] != "?"
    assert sorted(why for _, why in given_up) == ["crowded"] * 18 + ["slow"] * 2


def test_a_step_with_many_grammars_that_take_minutes_has_an_end(following: Following) -> None:
    answers = Answers(following, *[ENDLESS] * 20, shared=False)
    while not (given_up := answers.given_up()):
        answers.step()
    assert len(given_up) == 20
    assert len([why for _, why in given_up if why != "crowded"]) == MOST_LEFT


def test_an_answer_that_is_told_anew_has_its_time_for_that(following: Following) -> None:
    answers = Answers(following, "(xyz){3000}")
    for _ in range(3000):
        answers.step()
    assert answers.given_up() == []
    following.answers = None  # so that it is not told beside
    with following._keeping:
        following._replace()
    for _ in range(4):
        letter = answers.expected()
        assert answers.step() == letter
    assert answers.given_up() == []


def test_what_is_stuck_is_replaced_also_when_nobody_has_a_turn(
    following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, good = Answers(following, ENDLESS, ENDLESS), sys.executable
    monkeypatch.setattr(sys, "executable", "/nowhere")
    while not answers.given_up():
        answers.step()
    until(lambda: following._succession is None)
    monkeypatch.setattr(sys, "executable", good)
    until(lambda: following.refusal() is None)


def test_a_process_that_stands_still_does_not_hold_the_end_of_the_engine(
    following: Following, started: Sequence[FollowerProcess]
) -> None:
    answers = Answers(following, LETTERS)
    answers.step()
    os.kill(pid(started[0]), signal.SIGSTOP)
    with ThreadPoolExecutor() as pool:
        step = pool.submit(answers.step)
        until(following._turning.locked)
        following.close()
        assert step.result() == "?"
    assert answers.given_up() == [("0", "lost")]
    with pytest.raises(GrammarProcessError):
        kept(following, LETTERS)


def test_the_end_of_the_engine_finds_also_a_process_that_is_starting(
    following: Following, started: Sequence[FollowerProcess]
) -> None:
    answers = Answers(following, ENDLESS, LETTERS)
    while not answers.given_up():
        answers.step()
    until(lambda: len(started) == 2)
    os.kill(pid(started[1]), signal.SIGSTOP)
    following.close()
    until(lambda: started[1]._process.returncode is not None)


def test_it_ends_with_the_engine_also_where_it_is_stuck(following: Following) -> None:
    answers = Answers(following, ENDLESS)
    while not answers.given_up():
        answers.step()
    following.close()
    assert "has ended" in (following.refusal() or "")
