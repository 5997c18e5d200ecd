"""The process that follows grammars, and what becomes of answers when it is stuck or gone."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.follow.following import Follower, Following, KeptGrammar
from sluice_runtime.grammar.follow.matchers import Matchers
from sluice_runtime.grammar.follow.process import FollowerProcess, FollowerSizes
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
    sizes = FollowerSizes(lines=8, words=-(-SIZE // 32), memory_bytes=1 << 30)

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

    def __init__(self, following: Following, *patterns: str) -> None:
        self.matchers = Matchers(SIZE, following)
        self._rows = range(len(patterns))
        self._answered = 0
        for row, pattern in enumerate(patterns):
            message = Generate(
                str(row), PROMPT, 50, Sampling(), grammar=Grammar("regex", pattern, [EOS], "field")
            )
            self.matchers.open(message, kept(following, pattern))
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
        return [(slow.request_id, slow.why.reason) for slow in self.matchers.take_slow()]


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


def test_nobody_new_is_followed_beside_too_many_that_are_stuck(following: Following) -> None:
    answers = Answers(following, ENDLESS, LETTERS, ENDLESS)
    while not answers.given_up():
        assert following.refusal() is None
        answers.step()
    assert "being replaced" in (following.refusal() or "")
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


def test_grammars_that_nobody_uses_are_forgotten(following: Following) -> None:
    answers = Answers(following, LETTERS)
    for number in range(20):
        pattern = f"[ab]{{{number + 1}}}"
        grammar, letter = kept(following, pattern), answers.expected()
        assert answers.step() == letter
        assert set(following._kept) >= {grammar}
        del grammar
    assert len(following._kept) == 1


def test_what_cannot_be_kept_is_refused_and_the_process_lives(
    following: Following, started: Sequence[FollowerProcess]
) -> None:
    tokenizer = TOKENIZER.serialize_json().encode()
    with pytest.raises(GrammarError):
        following.keep(b"{}", tokenizer)
    assert Answers(following, LETTERS).step() == "x"
    assert len(started) == 1


def test_it_ends_with_the_engine_also_where_it_is_stuck(following: Following) -> None:
    answers = Answers(following, ENDLESS)
    while not answers.given_up():
        answers.step()
    following.close()
    assert "has ended" in (following.refusal() or "")
