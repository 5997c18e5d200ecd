"""The mask worker, and its replacement when it is stuck or gone."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from sluice_runtime.engine.device import HostDevice
from sluice_runtime.engine.sampling.masks import forbid
from sluice_runtime.errors import CompileKilledError, GrammarProcessError
from sluice_runtime.grammar.follow.mask_worker_pool import MaskWorker, MaskWorkerPool
from sluice_runtime.grammar.follow.matchers import Matchers
from sluice_runtime.grammar.follow.process import MaskWorkerProcess, MaskWorkerSizes
from sluice_runtime.grammar.follow.uninterruptible_calls import MAX_ABANDONED
from sluice_runtime.grammar.keys import KeptGrammar
from sluice_runtime.grammar.native import RAW, GrammarCompiler, TokenizerInfo
from sluice_runtime.scheduler.batch import Batch, ForwardMode, RowAdded
from sluice_runtime.wire.messages import Generate, Grammar, Sampling

pytestmark = pytest.mark.process

WORDS = [bytes([value]) for value in range(256)]
WORDS += [b"a" * length for length in range(2, 65)] + [b""]
SIZE, EOS = len(WORDS), len(WORDS) - 1
TOKENIZER = TokenizerInfo(WORDS, RAW, SIZE, [], False)
COMPILER = GrammarCompiler(TokenizerInfo(WORDS, RAW, SIZE, [], False), 1, False, 0)
ENDLESS = "[xy]{5}(a{0,60}){0,60}b"
"""Compiles at once; behind the fifth letter one mask takes minutes."""
LETTERS = "(xyz){100}"
TOO_LONG = {"slow", "starved"}
"""Why a mask that takes minutes is given up: on a busy machine its thread may get no processor.
"""
PROMPT = [1, 2, 3]


@pytest.fixture
def started() -> list[MaskWorkerProcess]:
    """All processes that `pool` starts."""
    return []


@pytest.fixture
def pool(started: list[MaskWorkerProcess]) -> Iterator[MaskWorkerPool]:
    sizes = MaskWorkerSizes(lines=32, words=-(-SIZE // 32), memory_bytes=1 << 30)

    def start(tokenizer: bytes) -> MaskWorkerProcess:
        started.append(MaskWorkerProcess(sizes, tokenizer))
        return started[-1]

    pool = MaskWorkerPool(start)
    yield pool
    pool.close()
    until(lambda: all(process._process.returncode is not None for process in started))


def kept(pool: MaskWorkerPool, pattern: str) -> KeptGrammar:
    text = COMPILER.compile_regex(pattern).serialize_json()
    return pool.keep(text.encode(), TOKENIZER.serialize_json().encode())


class Answers:
    """A request for each pattern, by its place; all draw the first letter that they may."""

    def __init__(self, pool: MaskWorkerPool, *patterns: str, shared: bool = True) -> None:
        self.matchers = Matchers(SIZE, pool)
        self._rows = range(len(patterns))
        self._answered = 0
        known: dict[str, KeptGrammar] = {}
        for row, pattern in enumerate(patterns):
            if not shared or pattern not in known:
                known[pattern] = kept(pool, pattern)
            message = Generate(
                str(row), PROMPT, 50, Sampling(), grammar=Grammar("regex", pattern, [EOS], "field")
            )
            self.matchers.open(message, known[pattern])
        added = tuple(RowAdded(row, str(row), Sampling()) for row in self._rows)
        self.matchers.follow(Batch(1, ForwardMode.DECODE, added_rows=added))

    def step(self) -> str:
        """What each drew; "?" where all was allowed."""
        logits = torch.zeros(len(self._rows), SIZE)
        contexts = [len(PROMPT) + self._answered] * len(self._rows)
        masks = self.matchers.masks(self._rows, contexts)
        assert masks is not None
        forbid(logits, masks, HostDevice())
        allowed = [row.isfinite().nonzero().flatten().tolist() for row in logits]
        self.matchers.accepting(self._rows)([tokens[0] for tokens in allowed])
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


def pid(process: MaskWorker | None) -> int:
    assert isinstance(process, MaskWorkerProcess)
    return process._process.pid


def test_a_mask_that_takes_minutes_ends_its_own_answer_alone(
    pool: MaskWorkerPool, started: Sequence[MaskWorkerProcess]
) -> None:
    answers = Answers(pool, ENDLESS, LETTERS)
    given_up: list[tuple[str, str]] = []
    while not given_up:
        letter = answers.expected()
        assert answers.step()[1] == letter
        given_up += answers.given_up()
    ((place, why),) = given_up
    assert (place, why in TOO_LONG) == ("0", True)
    until(lambda: len(started) == 2 and started[0]._process.returncode is not None)
    for _ in range(7):
        letter = answers.expected()
        assert answers.step() == "?" + letter
    assert answers.given_up() == []
    assert pool.refusal() is None


def test_a_replacement_takes_over_running_answers(pool: MaskWorkerPool) -> None:
    answers = Answers(pool, ENDLESS, LETTERS)
    while not answers.given_up():
        answers.step()
    first = pool._current
    until(lambda: pool._current is not first)
    letter = answers.expected()
    assert answers.step() == "?" + letter
    assert not answers.matchers._requests["1"].replayed


def test_no_answer_is_opened_beside_too_many_stuck_threads(pool: MaskWorkerPool) -> None:
    answers = Answers(pool, ENDLESS, LETTERS, ENDLESS)
    while not answers.given_up():
        assert pool.refusal() is None
        answers.step()
    assert "is stuck" in (pool.refusal() or "")
    until(lambda: pool.refusal() is None)
    letter = answers.expected()
    assert answers.step() == f"?{letter}?"


def test_answers_end_with_their_process_and_later_ones_are_followed(
    pool: MaskWorkerPool, started: Sequence[MaskWorkerProcess]
) -> None:
    answers = Answers(pool, LETTERS, LETTERS)
    answers.step()
    os.kill(pid(started[0]), signal.SIGKILL)
    until(lambda: answers.step() == "??")
    assert answers.given_up() == [("0", "lost"), ("1", "lost")]
    until(lambda: pool.refusal() is None)
    assert Answers(pool, LETTERS).step() == "x"
    assert len(started) == 2


def test_a_process_that_cannot_be_replaced_is_tried_again(
    pool: MaskWorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(pool, LETTERS)
    answers.step()
    good, tried = sys.executable, list[str]()
    monkeypatch.setattr(sys, "executable", "/nowhere")
    os.kill(pid(pool._current), signal.SIGKILL)
    until(lambda: answers.given_up() or not answers.step())
    for _ in range(3):
        tried.append(pool.refusal() or "")
        until(lambda: pool._replacement is None)
    assert all("has ended" in why for why in tried)
    monkeypatch.setattr(sys, "executable", good)
    until(lambda: pool.refusal() is None)
    assert Answers(pool, LETTERS).step() == "x"


def test_a_process_that_was_killed_at_rest_is_replaced_for_the_next_grammar(
    pool: MaskWorkerPool, started: Sequence[MaskWorkerProcess]
) -> None:
    answers = Answers(pool, LETTERS)
    answers.step()
    os.kill(pid(started[0]), signal.SIGKILL)
    assert Answers(pool, "[ab]").step() == "a"
    assert answers.step() == "y"
    assert len(started) == 2


def test_a_worker_without_memory_for_a_grammar_is_replaced(
    pool: MaskWorkerPool, started: Sequence[MaskWorkerProcess]
) -> None:
    answers, tokenizer = Answers(pool, LETTERS), TOKENIZER.serialize_json().encode()
    answers.step()
    with pytest.raises(CompileKilledError, match="grammarCompileBytes"):
        pool.keep(b"{}", tokenizer)  # as one that there is no memory for
    assert len(started) == 2
    for _ in range(4):
        letter = answers.expected()
        assert answers.step() == letter
    assert answers.given_up() == []


def test_many_answers_of_one_endless_grammar_do_not_stop_others(pool: MaskWorkerPool) -> None:
    answers = Answers(pool, *[ENDLESS] * 20, LETTERS)
    while not (given_up := answers.given_up()):
        assert answers.step()[-1] != "?"
    reasons = [why for _, why in given_up]
    assert len(reasons) == 20
    assert len(reasons) - reasons.count("crowded") <= MAX_ABANDONED
    assert {*reasons} - {"crowded"} <= TOO_LONG


def test_a_step_with_many_grammars_that_take_minutes_has_an_end(pool: MaskWorkerPool) -> None:
    answers = Answers(pool, *[ENDLESS] * 20, shared=False)
    while not (given_up := answers.given_up()):
        answers.step()
    assert len(given_up) == 20
    assert len([why for _, why in given_up if why != "crowded"]) == MAX_ABANDONED


def test_a_replayed_answer_has_time_for_all_its_tokens(pool: MaskWorkerPool) -> None:
    answers = Answers(pool, "(xyz){3000}")
    for _ in range(3000):
        answers.step()
    assert answers.given_up() == []
    pool.answers = None  # so that the replacement does not know it
    with pool._keep_lock:
        pool._replace()
    for _ in range(4):
        letter = answers.expected()
        assert answers.step() == letter
    assert answers.given_up() == []


def test_a_stuck_worker_is_replaced_between_turns_too(
    pool: MaskWorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, good = Answers(pool, ENDLESS, ENDLESS), sys.executable
    monkeypatch.setattr(sys, "executable", "/nowhere")
    while not answers.given_up():
        answers.step()
    until(lambda: pool._replacement is None)
    monkeypatch.setattr(sys, "executable", good)
    until(lambda: pool.refusal() is None)


def test_a_stopped_worker_does_not_delay_close(
    pool: MaskWorkerPool, started: Sequence[MaskWorkerProcess]
) -> None:
    answers = Answers(pool, LETTERS)
    answers.step()
    os.kill(pid(started[0]), signal.SIGSTOP)
    with ThreadPoolExecutor() as executor:
        step = executor.submit(answers.step)
        until(pool._turn_lock.locked)
        pool.close()
        assert step.result() == "?"
    assert answers.given_up() == [("0", "lost")]
    with pytest.raises(GrammarProcessError):
        kept(pool, LETTERS)


def test_close_kills_a_worker_that_is_starting(
    pool: MaskWorkerPool, started: Sequence[MaskWorkerProcess]
) -> None:
    answers = Answers(pool, ENDLESS, LETTERS)
    while not answers.given_up():
        answers.step()
    until(lambda: len(started) == 2)
    os.kill(pid(started[1]), signal.SIGSTOP)
    pool.close()
    until(lambda: started[1]._process.returncode is not None)


def test_close_kills_a_stuck_worker(pool: MaskWorkerPool) -> None:
    answers = Answers(pool, ENDLESS)
    while not answers.given_up():
        answers.step()
    pool.close()
    assert "has ended" in (pool.refusal() or "")
