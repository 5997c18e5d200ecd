"""The grammar queue: requests wait for their compiled grammar, in front of the scheduler.

A request without a grammar never comes here. One thread compiles all grammars, so that the engine's
loop never waits. Each request has a matcher of its own until it ends: matchers that share a
compiled grammar would add up their states, and hold them for ever. The number of live matchers is
limited. The API process bounds the queue by counting all requests that the engine holds. Knows no
scheduler.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Thread
from typing import Final, get_args

from llguidance import LLTokenizer

from sluice_runtime.errors import GrammarError
from sluice_runtime.grammar.constraint import (
    LIBRARY_FAILED,
    CompiledGrammar,
    compiled,
    start_deep_thread,
)
from sluice_runtime.grammar.masks import GivenUp, Matchers, SlowReason
from sluice_runtime.grammar.vocabulary import tokenizer_of
from sluice_runtime.wire.messages import Generate, Grammar, Refusal, TokenDelta

MAX_COMPILING: Final = 16
"""Most grammars handed to the thread at once. A tenant that arrives later waits for no more than
these."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Compiled:
    """The grammar of one request, or the reason why there is none."""

    grammar: CompiledGrammar | None = None
    error: str = ""
    failure: str = ""
    """Error that is the library's fault; `error` is the request's fault."""
    seconds: float = 0.0


class CompileThread:
    """Compiles grammars, one after the other. `tokens`: returns the vocabulary; called once, in the
    thread. `on_compiled`: called in the thread after each grammar."""

    def __init__(
        self, tokens: Callable[[], Sequence[bytes]], on_compiled: Callable[[], None]
    ) -> None:
        self._tokens = tokens
        self._on_compiled = on_compiled
        self._jobs: SimpleQueue[tuple[int, Grammar] | None] = SimpleQueue()
        self._finished: deque[tuple[int, Compiled]] = deque()
        self._thread: Thread | None = None

    def warm_up(self) -> None:
        """Starts the thread, which then reads the vocabulary; otherwise the first grammar starts
        it."""
        if self._thread is None:
            self._thread = start_deep_thread(self._run, "grammars")

    def submit(self, job: int, grammar: Grammar) -> None:
        """Hands a grammar to the thread; a later `finished` returns it, with its number."""
        try:
            self.warm_up()
        except RuntimeError:
            _log.exception("the thread that compiles grammars cannot be started")
            self._finished.append((job, Compiled(failure=LIBRARY_FAILED)))
        else:
            self._jobs.put((job, grammar))

    def finished(self) -> list[tuple[int, Compiled]]:
        """Grammars that were compiled or refused since the last call; never waits."""
        return [self._finished.popleft() for _ in range(len(self._finished))]

    def close(self) -> None:
        """Ends the thread when it is done with its grammar; does not wait."""
        self._jobs.put(None)

    def _run(self) -> None:
        try:
            tokenizer = tokenizer_of(self._tokens())
        except BaseException:  # also what the library raises for a fault of its own
            _log.exception("the grammar library cannot read the vocabulary")
            tokenizer = None
        while (asked := self._jobs.get()) is not None:
            job, grammar = asked
            began = time.monotonic()
            done = _compiled(tokenizer, grammar)
            self._finished.append((job, replace(done, seconds=time.monotonic() - began)))
            del done  # else the variable would keep the matcher alive during the wait
            self._on_compiled()


def _compiled(tokenizer: LLTokenizer | None, grammar: Grammar) -> Compiled:
    if tokenizer is None:
        return Compiled(failure="the grammar library cannot read the vocabulary")
    try:
        return Compiled(compiled(tokenizer, grammar.kind, grammar.text))
    except GrammarError as error:
        return Compiled(error=str(error))
    except BaseException:  # also what the library raises for a fault of its own
        _log.exception("the grammar library failed")
        return Compiled(failure=LIBRARY_FAILED)


@dataclass
class Released:
    """Requests that may run now, and the ends of those whose grammar cannot be used."""

    ready: list[Generate] = field(default_factory=list)
    ended: list[TokenDelta] = field(default_factory=list)


class GrammarCounts:
    """Counters since the start of the engine."""

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
    """Queue of requests with grammars, used by the engine's loop. Opens a matcher for each request
    that leaves the queue to run.

    `most`: limit of live matchers and grammars being compiled, together. The tenant with the fewest
    goes next.
    """

    def __init__(self, compiler: CompileThread, matchers: Matchers, most: int) -> None:
        self._compiler = compiler
        self._matchers = matchers
        self._most = most
        self._waiting: dict[str, dict[str, Generate]] = {}
        """Waiting requests by id, by tenant; the tenant served longest ago comes first."""
        self._jobs = itertools.count()
        self._compiling: dict[int, Generate] = {}
        self._aborted: set[int] = set()
        """Jobs of `_compiling` whose requests were aborted, so their result is dropped."""
        self._open: dict[str, str] = {}
        """Tenants of requests that have their matcher."""
        self._released = Released()
        self._queued: dict[str, int] = {}
        """Tokens of each request that waits or whose grammar is being compiled, by id."""
        self.prompt_tokens = 0
        """Tokens of all waiting requests."""
        self.counts = GrammarCounts()

    def __len__(self) -> int:
        return len(self._queued)

    def add(self, message: Generate) -> None:
        """Queues a request with a grammar; a later `released` returns it."""
        tokens = len(message.prompt_ids) + len(message.generated_ids)
        self._queued[message.request_id] = tokens
        self.prompt_tokens += tokens
        self._waiting.setdefault(message.tenant, {})[message.request_id] = message
        self._start()

    def abort(self, request_id: str) -> None:
        """Ends a waiting request; its compilation continues. Unknown ids are ignored."""
        if self._leave(request_id):
            self._released.ended.append(TokenDelta(request_id, (), "abort"))

    def released(self) -> Released:
        """Requests whose grammar was compiled or refused since the last call; never waits."""
        for job, done in self._compiler.finished():
            self.counts.compiled(done)
            message = self._compiling.pop(job)
            if job in self._aborted:
                self._aborted.remove(job)
            else:
                self._release(message, done)
        self._start()
        released, self._released = self._released, Released()
        return released

    def resumed(self, request_id: str, token: int) -> None:
        """Takes an answer's first token, which another engine drew; the answer may have no
        grammar."""
        self._matchers.resumed(request_id, token)

    def given_up(self, step: int) -> list[TokenDelta]:
        """The ends of running requests whose grammar was given up in `step`. Call it once the
        step's result was read; tokens drawn in that step do not follow the grammar."""
        if not self._matchers.used:
            return []
        return [self._ended_by(given_up) for given_up in self._matchers.take_given_up(step)]

    def ended(self, request_id: str) -> None:
        """Closes the matcher of a request that has ended; unknown ids are ignored."""
        if self._open.pop(request_id, None) is not None:
            self._matchers.close(request_id)
            self._start()

    def _start(self) -> None:
        """Starts compiling as many grammars as there is room for."""
        while (
            self._waiting
            and len(self._compiling) < MAX_COMPILING
            and len(self._compiling) + len(self._open) < self._most
        ):
            message, job = self._next(), next(self._jobs)
            assert message.grammar is not None
            self._compiling[job] = message
            self._compiler.submit(job, message.grammar)

    def _next(self) -> Generate:
        """Takes the oldest request of the tenant with the fewest requests that are being compiled
        or have a matcher."""
        live = Counter([*self._open.values(), *(m.tenant for m in self._compiling.values())])
        tenant = min(self._waiting, key=lambda tenant: live[tenant])
        group = self._waiting.pop(tenant)
        message = group.pop(next(iter(group)))
        if group:
            self._waiting[tenant] = group
        return message

    def _ended_by(self, given_up: GivenUp) -> TokenDelta:
        self.counts.given_up[given_up.why.reason] += 1
        failed = given_up.why.reason == "failed"
        return _end(given_up.request_id, given_up.grammar, given_up.why.error, failed=failed)

    def _leave(self, request_id: str) -> bool:
        """Takes back a request that waits; returns whether there was one."""
        if request_id not in self._queued:
            return False
        self.prompt_tokens -= self._queued.pop(request_id)
        for tenant, group in self._waiting.items():
            if group.pop(request_id, None):
                if not group:
                    del self._waiting[tenant]
                return True
        jobs = self._compiling.items()
        self._aborted.update(job for job, message in jobs if message.request_id == request_id)
        return True

    def _release(self, message: Generate, done: Compiled) -> None:
        name, grammar = message.request_id, message.grammar
        self.prompt_tokens -= self._queued.pop(name)
        assert grammar is not None
        if done.grammar is None:
            end = _end(name, grammar, done.error or done.failure, failed=bool(done.failure))
            self._released.ended.append(end)
        else:
            self._open[name] = message.tenant
            self._matchers.open(message, done.grammar)
            self._released.ready.append(message)


def _end(request_id: str, grammar: Grammar, error: str, *, failed: bool) -> TokenDelta:
    """The end of a request whose grammar cannot be used; `failed`: the library is at fault."""
    why: Refusal = "uncompiled" if failed else "invalid"
    return TokenDelta(request_id, (), "error", f"{grammar.field}: {error}", refusal=why)
