"""The grammar queue: requests wait for their compiled grammar, in front of the scheduler.

A request without a grammar never comes here, and one whose grammar is compiled passes at once. One
thread compiles, so that the engine's loop never waits. The API process bounds the queue: it counts
these requests among all that the engine holds. Knows no scheduler.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Final, NamedTuple, Protocol, get_args

from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.constraint import LIMITS, deep_thread, first_line, written
from sluice_runtime.grammar.masks import GivenUp, Matchers, SlowReason
from sluice_runtime.wire.messages import Generate, Grammar, GrammarKind, Refusal, TokenDelta

MAX_KEPT: Final = 256
"""Grammars, refused ones too, of which at most `MAX_KEPT_CHARACTERS` are kept."""
MAX_KEPT_CHARACTERS: Final = 512 << 10
"""Compiled, they may take five hundred times as many bytes."""

_log = logging.getLogger(__name__)


class GrammarKey(NamedTuple):
    """Identifies a grammar as requested."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True)
class Compiled:
    """A compiled grammar, or why there is none."""

    key: GrammarKey
    matcher: LLMatcher | None = None
    error: str = ""
    failure: str = ""
    """The same, where the library is at fault; not kept."""
    seconds: float = 0.0


class Compiler(Protocol):
    """What is used of `CompileThread`."""

    def submit(self, key: GrammarKey) -> None: ...
    def finished(self) -> list[Compiled]: ...


class _Tokens:
    """A vocabulary as the library reads it, with a token behind it that ends answers."""

    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.tokens = [*tokens, b"\xff<end>"]
        self.eos_token_id = len(tokens)

    def __call__(self, text: bytes) -> list[int]:
        """The library's check of what it is given; grammars need no tokenizing."""
        return list(text)


def tokenizer_of(tokens: Sequence[bytes]) -> LLTokenizer:
    """A tree of the vocabulary's tokens. Takes two seconds for 150,000 of them."""
    return LLTokenizer(TokenizerWrapper(_Tokens(tokens)), eos_token=len(tokens))


class CompileThread:
    """Compiles grammars, one after the other. `tokens`: called once, in the thread; `on_compiled`:
    called by it."""

    def __init__(
        self, tokens: Callable[[], Sequence[bytes]], on_compiled: Callable[[], None]
    ) -> None:
        self._tokens = tokens
        self._on_compiled = on_compiled
        self._jobs: SimpleQueue[GrammarKey | None] = SimpleQueue()
        self._finished: deque[Compiled] = deque()
        self._thread = deep_thread(self._run, "grammars")

    def warm_up(self) -> None:
        """Starts the thread, which reads the vocabulary; the first grammar does, too."""
        if self._thread.ident is None:
            self._thread.start()

    def submit(self, key: GrammarKey) -> None:
        """A later `finished` has it."""
        self.warm_up()
        self._jobs.put(key)

    def finished(self) -> list[Compiled]:
        """What was compiled or refused since the last call; never waits."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def close(self) -> None:
        """Ends the thread when it is done with its grammar; does not wait."""
        self._jobs.put(None)

    def _run(self) -> None:
        tokenizer = tokenizer_of(self._tokens())
        while (key := self._jobs.get()) is not None:
            began = time.monotonic()
            try:
                done = compiled(tokenizer, key)
            except BaseException:  # also what the library raises for a fault of its own
                _log.exception("the grammar library failed")
                done = Compiled(key, failure="the grammar library failed with it")
            seconds = time.monotonic() - began
            self._finished.append(replace(done, seconds=seconds))
            self._on_compiled()


def compiled(tokenizer: LLTokenizer, key: GrammarKey) -> Compiled:
    """Compiles one grammar."""
    try:
        grammar = written(key.kind, key.text)
    except GrammarError as error:
        return Compiled(key, error=str(error))
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    if matcher.is_error():
        return Compiled(key, error=first_line(matcher.get_error()))
    return Compiled(key, matcher)


@dataclass
class Released:
    """Requests that may run now, and the ends of those whose grammar cannot be used."""

    ready: list[Generate] = field(default_factory=list)
    ended: list[TokenDelta] = field(default_factory=list)


class GrammarCounts:
    """Since the start of the engine."""

    def __init__(self) -> None:
        self.compilations = dict.fromkeys(("compiled", "refused", "failed"), 0)
        self.compile_seconds = 0.0
        self.given_up = dict.fromkeys(get_args(SlowReason), 0)
        """Answers whose grammar was given up, by reason."""

    def compiled(self, done: Compiled) -> None:
        self.compilations[
            "failed" if done.failure else "refused" if done.error else "compiled"
        ] += 1
        self.compile_seconds += done.seconds


class GrammarQueue:
    """Belongs to the engine's loop. Opens a matcher for each request that leaves it to run."""

    def __init__(self, compiler: Compiler, matchers: Matchers) -> None:
        self._compiler = compiler
        self._matchers = matchers
        self._kept: OrderedDict[GrammarKey, Compiled] = OrderedDict()
        self._kept_characters = 0
        self._waiting: dict[GrammarKey, dict[str, Generate]] = {}
        self._keys: dict[str, GrammarKey] = {}
        self._released = Released()
        self.counts = GrammarCounts()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def prompt_tokens(self) -> int:
        """Of all waiting requests."""
        return sum(len(m.token_ids) for group in self._waiting.values() for m in group.values())

    def add(self, message: Generate) -> None:
        """A request with a grammar; a later `released` returns it."""
        assert message.grammar is not None
        key = _key(message.grammar)
        if known := self._kept.get(key):
            self._kept.move_to_end(key)
            self._release(message, known)
        else:
            if key not in self._waiting:
                self._compiler.submit(key)
            self._waiting.setdefault(key, {})[message.request_id] = message
            self._keys[message.request_id] = key

    def abort(self, request_id: str) -> None:
        """Its compilation goes on, for later requests. Unknown ids are ignored."""
        if key := self._keys.pop(request_id, None):
            del self._waiting[key][request_id]
        elif not self._recall(request_id):
            return
        self._released.ended.append(TokenDelta(request_id, (), "abort"))

    def released(self) -> Released:
        """Requests whose grammar was compiled or refused since the last call; never waits."""
        for done in self._compiler.finished():
            self.counts.compiled(done)
            self._keep(done)
            for message in self._waiting.pop(done.key, {}).values():
                del self._keys[message.request_id]
                self._release(message, done)
        released, self._released = self._released, Released()
        return released

    def resumed(self, request_id: str, token: int) -> None:
        """The first token of an answer was drawn elsewhere; it may have no grammar."""
        self._matchers.resumed(request_id, token)

    def given_up(self, step: int) -> list[TokenDelta]:
        """The ends of running requests whose grammar was given up in `step`, whose result has been
        read; the tokens they drew in it do not follow the grammar."""
        if not self._matchers.used:
            return []
        return [self._ended_by(given_up) for given_up in self._matchers.take_given_up(step)]

    def ended(self, request_id: str) -> None:
        """A request that ran has ended; unknown ids are ignored."""
        if self._matchers.used:
            self._matchers.close(request_id)

    def _ended_by(self, given_up: GivenUp) -> TokenDelta:
        """Remembers the refusal where the next answer would end alike."""
        why, grammar = given_up.why, given_up.grammar
        self.counts.given_up[why.reason] += 1
        if why.reason == "slow":
            self._keep(Compiled(_key(grammar), error=why.error))
        error = f"{grammar.field}: {why.error}"
        return TokenDelta(given_up.request_id, (), "error", error, refusal="invalid")

    def _keep(self, done: Compiled) -> None:
        if done.failure:
            return
        if self._kept.pop(done.key, None) is not None:
            self._kept_characters -= len(done.key.text)
        self._kept[done.key] = done
        self._kept_characters += len(done.key.text)
        while len(self._kept) > MAX_KEPT or self._kept_characters > MAX_KEPT_CHARACTERS:
            key, _ = self._kept.popitem(last=False)
            self._kept_characters -= len(key.text)

    def _recall(self, request_id: str) -> bool:
        """Takes back a request that was released but not collected; whether there was one."""
        ready = self._released.ready
        self._released.ready = [m for m in ready if m.request_id != request_id]
        if len(self._released.ready) == len(ready):
            return False
        self._matchers.close(request_id)
        return True

    def _release(self, message: Generate, done: Compiled) -> None:
        assert message.grammar is not None
        if done.matcher is None:
            error = f"{message.grammar.field}: {done.error or done.failure}"
            refusal: Refusal = "uncompiled" if done.failure else "invalid"
            end = TokenDelta(message.request_id, (), "error", error, refusal=refusal)
            self._released.ended.append(end)
        else:
            self._matchers.open(message, done.matcher)
            self._released.ready.append(message)


def _key(grammar: Grammar) -> GrammarKey:
    return GrammarKey(grammar.kind, grammar.text)
