"""The mask worker in use, and its replacement when it is stuck or has ended.

Calls of the library cannot be interrupted, but their process can be killed. When a worker has a
stuck thread or is gone, a new one is started and loads all grammars and answers, while the old one
goes on; then the new one takes over and the old one is killed. Knows no requests.
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

MAX_STUCK: Final = 2
"""Threads; beyond that no answer is opened before the worker has been replaced."""
_STUCK: Final = (
    "the process that follows grammars is stuck with an answer that was given up, and is replaced"
)
_GONE: Final = "the process that follows grammars has ended"
_TOO_LARGE: Final = (
    "following it takes more memory than its process has; allowed: as much as grammarCompileBytes"
)


class MaskWorker(Protocol):
    """What is used of `process.MaskWorkerProcess`."""

    masks: NDArray[np.int32]

    def keep(self, grammar: int, text: bytes) -> str: ...
    def turn(self, turn: Turn) -> Turned: ...
    def kill(self) -> None: ...
    def close(self) -> None: ...


class Answers(Protocol):
    """The answers that a replacement has to know."""

    def updates_for(self, worker: MaskWorker) -> Sequence[Turn]:
        """The tokens of running answers that `worker` does not have yet. Not during a turn."""

    def update_done(self, turn: Turn, turned: Turned) -> None:
        """The worker's reply to one of them. Not during a turn."""


class MaskWorkerPool:
    """`start` makes a worker for a tokenizer, serialized by a compile process."""

    def __init__(self, start: Callable[[bytes], MaskWorker]) -> None:
        self.answers: Answers | None = None
        self._start = start
        self._tokenizer = b""
        self._kept: WeakSet[KeptGrammar] = WeakSet()
        self._number = 0
        self._forgotten: deque[int] = deque()
        self._keep_lock = threading.Lock()
        """Held while grammars are loaded, which may take seconds."""
        self._turn_lock = threading.Lock()
        """Held during a turn. The current worker changes while both locks are held."""
        self._current: MaskWorker | None = None
        self._starting: MaskWorker | None = None
        self._gone = True
        self._stuck = 0
        self._closed = False
        self._replacement: threading.Thread | None = None

    def keep(self, text: bytes, tokenizer: bytes) -> KeptGrammar:
        """Loads a serialized grammar into the worker and waits for that; the first one waits for
        the worker to start. From any thread.

        Raises:
            CompileKilledError: even a new worker has no memory for it beside those in use.
            GrammarProcessError: no worker can be started.
        """
        with self._keep_lock:
            self._tokenizer = tokenizer
            grammar = KeptGrammar(self._number, text)
            self._number += 1
            if not self._loads(grammar, text):
                self._replace()  # it had ended, or has too many grammars that are no longer used
                if not self._loads(grammar, text):
                    raise CompileKilledError(_TOO_LARGE)
            self._kept.add(grammar)
            finalize(grammar, self._forgotten.append, grammar.number).atexit = False
            return grammar

    def refusal(self) -> str | None:
        """Why no answer may be opened now; None: it may. Starts the replacement of a worker that is
        stuck or gone. From any thread."""
        if not self._gone and self._stuck < MAX_STUCK:
            return None
        self._start_replacement()
        return _GONE if self._gone else _STUCK

    def turn(self, of: Callable[[MaskWorker, list[int]], Turn]) -> tuple[Turned, NDArray[np.int32]]:
        """Sends a turn and returns the result with the masks. `of` makes the turn, for a worker and
        with the grammars to forget; answers that the worker does not know are opened by it. Always
        called by the same thread.

        Raises:
            GrammarProcessError: there is no worker, or it ended during the turn.
        """
        with self._turn_lock:
            try:
                turned, masks = self._turned(of)
            except GrammarProcessError:
                self._gone = True
                self._start_replacement()
                raise
            self._stuck = turned.stuck
        if turned.stuck:
            self._start_replacement()
        return turned, masks

    def close(self) -> None:
        """Kills the workers, whatever they do, for good. From any thread."""
        self._closed = self._gone = True
        for worker in filter(None, (self._current, self._starting)):
            worker.kill()
        with self._turn_lock:
            current, self._current = self._current, None
        if current is not None:
            current.close()

    def _turned(
        self, of: Callable[[MaskWorker, list[int]], Turn]
    ) -> tuple[Turned, NDArray[np.int32]]:
        current = self._current
        if self._gone or current is None:
            raise GrammarProcessError(_GONE)
        forgotten = [self._forgotten.popleft() for _ in range(len(self._forgotten))]
        return current.turn(of(current, forgotten)), current.masks

    def _loads(self, grammar: KeptGrammar, text: bytes) -> bool:
        """Whether there is a worker and it has loaded the grammar."""
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

    def _start_replacement(self) -> None:
        """In a thread of its own; callers try again if it fails."""
        if self._replacement is None and not self._closed:
            self._replacement = threading.Thread(
                target=self._replace_if_needed, name="mask-worker-start", daemon=True
            )
            self._replacement.start()

    def _replace_if_needed(self) -> None:
        try:
            with self._keep_lock:
                if self._gone or self._stuck:
                    _log.warning("%s", _GONE if self._gone else _STUCK)
                    self._replace()
        except GrammarProcessError as error:
            if not self._closed:
                _log.warning("no other process follows grammars: %s", error)
        finally:
            self._replacement = None

    def _replace(self) -> None:
        """Called with `_keep_lock` held."""
        self._refuse_if_closed()
        known = list(self._kept)
        replacement = self._starting = self._start(self._tokenizer)
        retired: MaskWorker | None = replacement
        try:
            self._refuse_if_closed()  # `close` may not have seen it
            self._bring_up_to_date(replacement, known)
            with self._turn_lock:
                self._refuse_if_closed()
                retired, self._current = self._current, replacement
                self._gone, self._stuck = False, 0
        finally:
            self._starting = None
            if retired is not None:
                retired.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise GrammarProcessError(_GONE)

    def _bring_up_to_date(self, replacement: MaskWorker, known: list[KeptGrammar]) -> None:
        """Loads grammars and answers before it takes over, so that no step waits for that."""
        for grammar in known:
            if error := replacement.keep(grammar.number, grammar.text()):
                _log.warning("a grammar cannot be followed any more: %s", error)
        if self.answers is None:
            return
        for _ in range(2):  # the second pass sends what was drawn during the first
            with self._turn_lock:
                turns = self.answers.updates_for(replacement)
            for turn in turns:
                turned = replacement.turn(turn)
                with self._turn_lock:
                    self.answers.update_done(turn, turned)
