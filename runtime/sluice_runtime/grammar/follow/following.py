"""Who follows the grammars of running requests: a process, and the one that comes after it.

What the library does cannot be interrupted, but its process can be ended. When one has a thread
that is stuck, or is gone, the next is started and learns all grammars that are in use, while the
first goes on with the other answers; then it takes over, and the first is ended. Knows no requests.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakSet, finalize

from sluice_runtime.errors import CompileProcessError, GrammarError
from sluice_runtime.grammar.follow.turns import Turn, Turned

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_log = logging.getLogger(__name__)

MOST_STUCK: Final = 2
"""Threads, before nobody new is followed until the next process has taken over."""
_STUCK: Final = (
    "the process that follows grammars is stuck in an answer that was given up, and is being replaced"
)
_GONE: Final = "the process that follows grammars has ended"


class Follower(Protocol):
    """What of `follower_process.FollowerProcess` is used."""

    masks: NDArray[np.int32]

    def keep(self, grammar: int, text: bytes) -> str: ...
    def turn(self, turn: Turn) -> Turned: ...
    def close(self) -> None: ...


class KeptGrammar:
    """A compiled grammar that can be followed for as long as this is referred to. The text is for
    followers to come."""

    def __init__(self, number: int, text: bytes) -> None:
        self.number = number
        self.text = text


class Following:
    """`start` makes a follower, of a tokenizer as the compile process writes it down."""

    def __init__(self, start: Callable[[bytes], Follower]) -> None:
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
        self._gone = True
        self._stuck = 0
        self._closed = False
        self._succession: threading.Thread | None = None

    def keep(self, text: bytes, tokenizer: bytes) -> KeptGrammar:
        """A grammar that the compile process wrote down. Waits until it can be followed; the first
        one waits for a process. From any thread.

        Raises:
            GrammarError: it cannot be.
            CompileProcessError: there is no process.
        """
        with self._keeping:
            self._tokenizer = tokenizer
            grammar = KeptGrammar(self._number, text)
            self._number += 1
            if error := self._learn(grammar):
                raise GrammarError(error)
            self._kept.add(grammar)
            finalize(grammar, self._forgotten.append, grammar.number)
            return grammar

    def refusal(self) -> str | None:
        """Why no answer may be opened now, if so; then the next follower is under way. From any
        thread."""
        if self._gone:
            self._succeed()
            return _GONE
        return _STUCK if self._stuck >= MOST_STUCK else None

    def turn(self, of: Callable[[Follower, list[int]], Turn]) -> tuple[Turned, NDArray[np.int32]]:
        """A turn and all masks; `of` makes it, for a follower and with the grammars to forget. One
        thread's. Answers have to be opened anew with a follower that does not know them.

        Raises:
            CompileProcessError: there is no process, or it ended over it.
        """
        with self._turning:
            if self._gone or self._current is None:
                self._succeed()
                raise CompileProcessError(_GONE)
            forgotten = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
            try:
                turned = self._current.turn(of(self._current, forgotten))
            except CompileProcessError:
                self._gone = True
                self._succeed()
                raise
            masks, self._stuck = self._current.masks, turned.stuck
        if turned.stuck:
            self._succeed()
        return turned, masks

    def close(self) -> None:
        """Ends the process. From any thread; nobody is followed after."""
        with self._turning:
            self._closed = self._gone = True
            current, self._current = self._current, None
        if current is not None:
            current.close()

    def _learn(self, grammar: KeptGrammar) -> str:
        """By the current follower, or by the next one if it has died before."""
        if not self._gone and self._current is not None:
            with suppress(CompileProcessError):
                return self._current.keep(grammar.number, grammar.text)
        self._replace()
        assert self._current is not None
        try:
            return self._current.keep(grammar.number, grammar.text)
        except CompileProcessError:
            self._gone = True
            raise

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
                if (self._gone or self._stuck) and not self._closed:
                    _log.warning("%s", _GONE if self._gone else _STUCK)
                    self._replace()
        except CompileProcessError as error:
            if not self._closed:
                _log.warning("no other process follows grammars: %s", error)
        finally:
            self._succession = None

    def _replace(self) -> None:
        """To be called with `_keeping` held."""
        known = list(self._kept)
        successor = self._start(self._tokenizer)
        try:
            for grammar in known:
                successor.keep(grammar.number, grammar.text)
        except CompileProcessError:
            successor.close()
            raise
        with self._turning:
            retired = successor if self._closed else self._current
            if not self._closed:
                self._current, self._gone, self._stuck = successor, False, 0
        if retired is not None:
            retired.close()
        if self._closed:
            raise CompileProcessError(_GONE)
