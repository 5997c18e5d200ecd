"""The grammar queue: requests wait for their compiled grammar, in front of the scheduler.

A request without a grammar never comes here, and one whose grammar is compiled passes at once. The
API process bounds the queue: it counts these requests among all that the engine holds. Knows
neither the scheduler nor processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, get_args

from sluice_runtime.grammar.allowance import SlowReason
from sluice_runtime.grammar.compile.cache import GrammarCache
from sluice_runtime.grammar.compile.pool import Compiled, CompileOutcome
from sluice_runtime.grammar.follow.matchers import Matchers, Slow
from sluice_runtime.grammar.keys import GrammarKey
from sluice_runtime.wire.messages import Generate, Refusal, TokenDelta


class Compiler(Protocol):
    """What is used of `pool.CompilePool`."""

    def submit(self, key: GrammarKey) -> None: ...
    def withdraw(self, key: GrammarKey) -> bool: ...
    def finished(self) -> list[Compiled]: ...


@dataclass
class Released:
    """Requests that may run now, and the ends of those whose grammar cannot be used."""

    ready: list[Generate] = field(default_factory=list)
    ended: list[TokenDelta] = field(default_factory=list)


class GrammarCounts:
    """Since the start of the engine."""

    def __init__(self) -> None:
        self.compilations = dict.fromkeys(get_args(CompileOutcome), 0)
        self.compile_seconds = 0.0
        self.given_up = dict.fromkeys(get_args(SlowReason), 0)
        """Answers whose grammar was given up, by reason."""

    def compiled(self, compiled: Compiled) -> None:
        self.compilations[compiled.outcome] += 1
        self.compile_seconds += compiled.seconds


class GrammarQueue:
    """Belongs to the engine's loop. Opens a matcher for each request that leaves it to run."""

    def __init__(
        self,
        compiler: Compiler,
        matchers: Matchers,
        cache: GrammarCache | None = None,
    ) -> None:
        self._compiler = compiler
        self._matchers = matchers
        self._cache = cache or GrammarCache()
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
        key = GrammarKey(message.grammar.kind, message.grammar.text)
        if known := self._cache.get(key):
            self._release(message, known)
        else:
            if key not in self._waiting:
                self._compiler.submit(key)
            self._waiting.setdefault(key, {})[message.request_id] = message
            self._keys[message.request_id] = key

    def abort(self, request_id: str) -> None:
        """A compilation that has begun goes on, for later requests; one that no request waits for
        any more is withdrawn. Unknown ids are ignored."""
        if key := self._keys.pop(request_id, None):
            del self._waiting[key][request_id]
            if not self._waiting[key] and self._compiler.withdraw(key):
                del self._waiting[key]
        elif not self._recall(request_id):
            return
        self._released.ended.append(TokenDelta(request_id, (), "abort"))

    def released(self) -> Released:
        """Requests whose grammar was compiled or refused since the last call; never waits."""
        for finished in self._compiler.finished():
            self.counts.compiled(finished)
            compiled = self._cache.judged(finished)
            for message in self._waiting.pop(compiled.key, {}).values():
                del self._keys[message.request_id]
                self._release(message, compiled)
        released, self._released = self._released, Released()
        return released

    def resumed(self, request_id: str, token: int) -> None:
        """The first token of an answer was drawn elsewhere; it may have no grammar."""
        self._matchers.resumed(request_id, token)

    def given_up(self, step: int) -> list[TokenDelta]:
        """The ends of running requests whose grammar was given up in `step`, whose result has been
        read; the tokens they drew in it do not follow the grammar."""
        return [self._ended_as_slow(slow) for slow in self._matchers.take_slow(step)]

    def ended(self, request_id: str) -> None:
        """A request that ran has ended; unknown ids are ignored."""
        self._matchers.close(request_id)

    def _ended_as_slow(self, slow: Slow) -> TokenDelta:
        """Remembers the refusal where the next answer would end alike."""
        self.counts.given_up[slow.why.reason] += 1
        if slow.why.lasts:
            self._cache.put(Compiled(slow.key, error=slow.why.error))
        refusal: Refusal = "invalid" if slow.why.own_fault else "uncompiled"
        error = f"{slow.field}: {slow.why.error}"
        return TokenDelta(slow.request_id, (), "error", error, refusal=refusal)

    def _recall(self, request_id: str) -> bool:
        """Takes back a request that was released but not collected; whether there was one."""
        ready = self._released.ready
        self._released.ready = [m for m in ready if m.request_id != request_id]
        if len(self._released.ready) == len(ready):
            return False
        self._matchers.close(request_id)
        return True

    def _release(self, message: Generate, compiled: Compiled) -> None:
        assert message.grammar is not None
        refusal = self._matchers.refusal() if compiled.grammar else None
        if failure := compiled.failure or refusal:
            self._end(message, failure, "uncompiled")
        elif compiled.grammar is None:
            self._end(message, f"{message.grammar.field}: {compiled.error}", "invalid")
        else:
            self._matchers.open(message, compiled.grammar)
            self._released.ready.append(message)

    def _end(self, message: Generate, error: str, refusal: Refusal) -> None:
        end = TokenDelta(message.request_id, (), "error", error, refusal=refusal)
        self._released.ended.append(end)
