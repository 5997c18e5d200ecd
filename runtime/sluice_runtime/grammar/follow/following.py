"""Who follows the grammars of running requests: a process, and the one that comes after it.

What the library does cannot be interrupted, but its process can be ended. When one has a thread
that is stuck, or is gone, the next is started and learns all grammars and answers, while the first
goes on with them; then it takes over, and the first is ended. Knows no requests.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet, finalize

from sluice_runtime.errors import CompileKilledError, GrammarProcessError
from sluice_runtime.grammar.follow.turns import Turn, Turned
from sluice_runtime.grammar.keys import KeptGrammar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

MOST_STUCK: Final = 2
"""Threads, before nobody new is followed until the next process has taken over."""
_STUCK: Final = (
    "the process that follows grammars is stuck with an answer that was given up, and is replaced"
)
_GONE: Final = "the process that follows grammars has ended"
_TOO_LARGE: Final = (
    "following it takes more memory than its process has; allowed: as much as grammarCompileBytes"
)


class Follower(Protocol):
    """What of `process.FollowerProcess` is used."""

    masks: NDArray[np.int32]

    def keep(self, grammar: int, text: bytes) -> str: ...
    def turn(self, turn: Turn) -> Turned: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class Answers(Protocol):
    """What the next follower has to be told of answers."""

    def told_to(self, follower: Follower) -> Sequence[Turn]:
        """For each that runs its tokens, as far as they were not told before. Not beside a turn."""

    def heard(self, turn: Turn, turned: Turned) -> None:
        """What came of that."""


class Following:
    """`start` makes a follower, of a tokenizer as the compile process writes it down."""

    def __init__(self, start: Callable[[bytes], Follower]) -> None:
        self.answers: Answers | None = None
        self._start = start
        self._tokenizer = b""
        self._kept: WeakSet[KeptGrammar] = WeakSet()
        self._number = 0
        self._forgotten: deque[int] = deque()
        self._keeping = threading.Lock()
        """Held while followers learn grammars; that may take seconds."""
        self._turning = threading.Lock()
        """Held during a turn. The current follower changes under both locks."""
        self._current: Follower | None = None
        self._starting: Follower | None = None
        self._gone = True
        self._stuck = 0
        self._closed = False
        self._succession: threading.Thread | None = None

    def keep(self, text: bytes, tokenizer: bytes) -> KeptGrammar:
        """A grammar that the compile process wrote down. Waits until it can be followed; the first
        one waits for a process. From any thread.

        Raises:
            CompileKilledError: a process that has only what is in use has no memory for it.
            GrammarProcessError: there is no process.
        """
        with self._keeping:
            self._tokenizer = tokenizer
            grammar = KeptGrammar(self._number, text)
            self._number += 1
            if not self._learns(grammar, text):
                self._replace()  # it had ended, or knows too much that nobody uses
                if not self._learns(grammar, text):
                    raise CompileKilledError(_TOO_LARGE)
            self._kept.add(grammar)
            finalize(grammar, self._forgotten.append, grammar.number).atexit = False
            return grammar

    def refusal(self) -> str | None:
        """Why no answer may be opened now, if so; then the next follower is under way. From any
        thread."""
        if not self._gone and self._stuck < MOST_STUCK:
            return None
        self._succeed()
        return _GONE if self._gone else _STUCK

    def turn(self, of: Callable[[Follower, list[int]], Turn]) -> tuple[Turned, NDArray[np.int32]]:
        """A turn and all masks; `of` makes it, for a follower and with the grammars to forget. One
        thread's. Answers have to be opened anew with a follower that does not know them.

        Raises:
            GrammarProcessError: there is no process, or it ended over it.
        """
        with self._turning:
            try:
                turned, masks = self._turned(of)
            except GrammarProcessError:
                self._gone = True
                self._succeed()
                raise
            self._stuck = turned.stuck
        if turned.stuck:
            self._succeed()
        return turned, masks

    def close(self) -> None:
        """Ends the processes, whatever they do. From any thread; nobody is followed after."""
        self._closed = self._gone = True
        for follower in filter(None, (self._current, self._starting)):
            follower.kill()
        with self._turning:
            current, self._current = self._current, None
        if current is not None:
            current.close()

    def _turned(
        self, of: Callable[[Follower, list[int]], Turn]
    ) -> tuple[Turned, NDArray[np.int32]]:
        current = self._current
        if self._gone or current is None:
            raise GrammarProcessError(_GONE)
        forgotten = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
        return current.turn(of(current, forgotten)), current.masks

    def _learns(self, grammar: KeptGrammar, text: bytes) -> bool:
        """Whether the current follower can be had and takes it."""
        current = self._current
        if self._gone or current is None:
            return False
        try:
            error = current.keep(grammar.number, text)
        except GrammarProcessError as ended:
            self._gone, error = True, str(ended)
        if error and not self._closed:
            _log.warning("a grammar cannot be followed: %s", error)
        return not error

    def _succeed(self) -> None:
        """Beside whoever asks, who asks again if it fails."""
        if self._succession is None and not self._closed:
            self._succession = threading.Thread(
                target=self._replace_if_needed, name="grammars-next", daemon=True
            )
            self._succession.start()

    def _replace_if_needed(self) -> None:
        try:
            with self._keeping:
                if self._gone or self._stuck:
                    _log.warning("%s", _GONE if self._gone else _STUCK)
                    self._replace()
        except GrammarProcessError as error:
            if not self._closed:
                _log.warning("no other process follows grammars: %s", error)
        finally:
            self._succession = None

    def _replace(self) -> None:
        """To be called with `_keeping` held."""
        self._refuse_if_closed()
        known = list(self._kept)
        successor = self._starting = self._start(self._tokenizer)
        retired: Follower | None = successor
        try:
            self._refuse_if_closed()  # who closed before did not know of it
            self._teach(successor, known)
            with self._turning:
                self._refuse_if_closed()
                retired, self._current = self._current, successor
                self._gone, self._stuck = False, 0
        finally:
            self._starting = None
            if retired is not None:
                retired.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise GrammarProcessError(_GONE)

    def _teach(self, successor: Follower, known: list[KeptGrammar]) -> None:
        """What is in use, before it is asked for: nobody waits for it in a step."""
        for grammar in known:
            if error := successor.keep(grammar.number, grammar.text()):
                _log.warning("a grammar cannot be followed any more: %s", error)
        if self.answers is None:
            return
        for _ in range(2):  # the second time what was drawn in the meantime
            with self._turning:
                turns = self.answers.told_to(successor)
            for turn in turns:
                self.answers.heard(turn, successor.turn(turn))
