"""The mask worker: a process that moves each answer through its grammar and writes its masks.

`python -m sluice_runtime.grammar.follow.mask_worker --memory-bytes N --lines N --words N
--masks FD --turns FD --turned FD`. Standard input brings the tokenizer and then grammars, loaded by
a thread of their own. Calls of the library cannot be interrupted: one that takes too long is
abandoned, and the engine then replaces this process. Imports no torch.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from sluice_runtime.grammar.bounds import bound_this_process, without_torch
from sluice_runtime.grammar.follow.turns import (
    Kept,
    LeftLine,
    LeftReason,
    Line,
    Opened,
    Turn,
    Turned,
)
from sluice_runtime.grammar.follow.uninterruptible_calls import (
    AbandonReason,
    UninterruptibleCalls,
)
from sluice_runtime.grammar.frames import BrokenFrameError, read_frame, write_frame
from sluice_runtime.scheduler.batch import NO_TOKEN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sluice_runtime.grammar.native import CompiledGrammar, GrammarMatcher

_INPUT: Final = 0
_OUTPUT: Final = 1
_OOM_SCORE: Final = 900
_LEFT: Final[Mapping[AbandonReason, LeftReason]] = {
    "slow": "slow",
    "starved": "starved",
    "skipped": "crowded",
}


class _RefusedError(Exception):
    """The grammar forbids a token that was drawn."""


class _Answer:
    """How far one answer is in its grammar."""

    def __init__(self, compiled: CompiledGrammar | None, opened: Opened, words: int) -> None:
        self._compiled = compiled
        self.grammar = opened.grammar
        self._end_token_ids = opened.end_token_ids
        self._matcher: GrammarMatcher | None = None
        self._accepted = 0
        self._lost = False
        self.mask = np.empty((1, words), np.int32)
        """Not shared with the engine: an abandoned call may still write here."""
        self.seconds = 0.0
        """Processor time of its last mask."""
        self.failed: LeftReason | None = None

    def fill(self, line: Line, clock: Callable[[], float]) -> None:
        """Writes the mask of the next token; all tokens are allowed once the answer has ended."""
        began = clock()
        try:
            self._fill(line)
        except _RefusedError:
            self.failed = "refused"
        except Exception:  # out of memory, or a check of the library; the others go on
            traceback.print_exc()
            self.failed = "broken"
        self.seconds = clock() - began

    def _fill(self, line: Line) -> None:
        matcher = self._go_to(line.kept, line.drawn)
        if self._lost or matcher.is_terminated():
            self.mask[:] = -1
            return
        expected = line.kept + len(line.drawn)
        assert self._accepted == expected, "a token was drawn behind the matcher's back"
        matcher.fill_next_token_bitmask(self.mask, 0, False)

    def _go_to(self, kept: int, drawn: Sequence[int]) -> GrammarMatcher:
        from sluice_runtime.grammar.native import GrammarMatcher

        matcher = self._matcher
        if self._compiled is None:
            raise MemoryError  # it could not be loaded
        if matcher is None:
            matcher = GrammarMatcher(self._compiled, self._end_token_ids, False, -1, None)
            self._matcher = matcher
        if self._accepted > kept:
            matcher.rollback(self._accepted - kept)
            self._accepted = kept
        if self._accepted == kept:
            self._lost = False
        for token in drawn:
            self._lost = self._lost or token == NO_TOKEN
            if self._lost or matcher.is_terminated():
                break
            if not matcher.accept_token(token, False):
                raise _RefusedError
            self._accepted += 1
        return matcher


class MaskWriter:
    """All answers of the engine. `grammars`: by number; another thread adds to it."""

    def __init__(
        self,
        grammars: dict[int, CompiledGrammar],
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._grammars = grammars
        self._clock = clock
        self._calls = UninterruptibleCalls()
        self._answers: dict[int, _Answer] = {}

    def turn(self, turn: Turn, masks: NDArray[np.int32]) -> Turned:
        """masks: [at least as many as lines, words of 32 tokens]."""
        for number in turn.closed:
            self._answers.pop(number, None)
        for number in turn.forgotten:
            self._grammars.pop(number, None)
        for opened in turn.opened:
            compiled = self._grammars.get(opened.grammar)
            self._answers[opened.answer] = _Answer(compiled, opened, masks.shape[1])
        answers = [self._answers[line.answer] for line in turn.lines]
        calls = [
            partial(answer.fill, line, self._clock)
            for answer, line in zip(answers, turn.lines, strict=True)
        ]
        limits = [line.max_seconds for line in turn.lines]
        kinds = [answer.grammar for answer in answers]
        left = [
            LeftLine(one.place, _LEFT[one.reason]) for one in self._calls.make(calls, limits, kinds)
        ]
        left += [LeftLine(place, a.failed) for place, a in enumerate(answers) if a.failed]
        without = {line.place for line in left}
        for place, answer in enumerate(answers):
            masks[place] = -1 if place in without else answer.mask
        return Turned([answer.seconds for answer in answers], left, self._calls.busy)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until the engine closes the pipes; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("memory-bytes", "lines", "words", "masks", "turns", "turned"):
        parser.add_argument(f"--{option}", type=int, required=True)
    options = parser.parse_args(arguments)
    bound_this_process(options.memory_bytes, _OOM_SCORE)
    without_torch()
    shape = (options.lines, options.words)
    shared = mmap.mmap(options.masks, 0)
    masks = np.frombuffer(shared, np.int32).reshape(shape)
    grammars: dict[int, CompiledGrammar] = {}
    threading.Thread(target=_keep, args=(grammars,), name="grammars", daemon=True).start()
    with suppress(BrokenFrameError):
        _serve(grammars, masks, options.turns, options.turned)
    os._exit(0)  # does not wait for threads that are stuck


def _serve(
    grammars: dict[int, CompiledGrammar], masks: NDArray[np.int32], turns: int, turned: int
) -> None:
    followed = MaskWriter(grammars)
    while True:
        turn = msgspec.msgpack.decode(read_frame(turns), type=Turn)
        write_frame(turned, msgspec.msgpack.encode(followed.turn(turn, masks)))


def _keep(grammars: dict[int, CompiledGrammar]) -> None:
    """Loads grammars, in a thread of its own; the process ends if that fails."""
    try:
        with suppress(BrokenFrameError):
            _load(grammars)
    except Exception:
        traceback.print_exc()
        os._exit(1)


def _load(grammars: dict[int, CompiledGrammar]) -> None:
    from sluice_runtime.grammar.native import CompiledGrammar, TokenizerInfo

    tokenizer = TokenizerInfo.deserialize_json(read_frame(_INPUT).decode())
    while True:
        number, text, error = int(read_frame(_INPUT)), read_frame(_INPUT), ""
        try:
            grammars[number] = CompiledGrammar.deserialize_json(text.decode(), tokenizer)
        except (RuntimeError, ValueError, MemoryError) as raised:
            error = str(raised) or "no memory"
        write_frame(_OUTPUT, msgspec.msgpack.encode(Kept(error)))


if __name__ == "__main__":
    sys.exit(main())
