"""The grammar queue: waiting, passing, and what the cache keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from sluice_runtime.grammar.allowance import (
    BROKEN,
    CROWDED,
    LOST,
    SLOW_ANSWER,
    SLOW_CALL,
    STARVED,
    TooSlow,
)
from sluice_runtime.grammar.compile.cache import GrammarCache
from sluice_runtime.grammar.compile.pool import Compiled
from sluice_runtime.grammar.follow.matchers import Matchers, Slow
from sluice_runtime.grammar.keys import GrammarKey
from sluice_runtime.grammar.waiting import GrammarQueue
from sluice_runtime.wire.messages import Generate, Grammar, Sampling

from tests.runtime.grammar.fake_compiler import FakeCompiler, no_workers

COMPILED = cast(Any, object())


class Opened(Matchers):
    """Remembers which requests were opened and closed."""

    def __init__(self) -> None:
        super().__init__(0, no_workers())
        self.live: list[str] = []
        self.refuses: str | None = None

    def refusal(self) -> str | None:
        return self.refuses

    def open(self, message: Generate, compiled: object) -> None:
        assert compiled is COMPILED
        self.live.append(message.request_id)

    def close(self, request_id: str) -> None:
        if request_id in self.live:
            self.live.remove(request_id)


def ask(name: str, text: str = "a") -> Generate:
    return Generate(name, [1, 2, 3], 5, Sampling(), grammar=Grammar("regex", text, [9], "field"))


def key(text: str = "a") -> GrammarKey:
    return GrammarKey("regex", text)


@pytest.fixture
def compiler() -> FakeCompiler:
    return FakeCompiler()


@pytest.fixture
def matchers() -> Opened:
    return Opened()


@pytest.fixture
def queue(compiler: FakeCompiler, matchers: Opened) -> GrammarQueue:
    return GrammarQueue(compiler, matchers)


def ready(queue: GrammarQueue) -> list[str]:
    return [message.request_id for message in queue.released().ready]


def test_a_request_waits_until_its_grammar_is_compiled(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened
) -> None:
    queue.add(ask("one"))
    assert ready(queue) == []
    assert (len(queue), queue.prompt_tokens) == (1, 3)
    compiler.done.append(Compiled(key(), COMPILED))
    assert ready(queue) == ["one"]
    assert matchers.live == ["one"]
    assert (len(queue), queue.prompt_tokens) == (0, 0)
    assert ready(queue) == []


def test_requests_for_one_grammar_share_its_compilation(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    for name in ("one", "two"):
        queue.add(ask(name))
    queue.add(ask("other", "b"))
    assert compiler.submitted == [key("a"), key("b")]
    compiler.done.append(Compiled(key("a"), COMPILED))
    assert ready(queue) == ["one", "two"]
    assert len(queue) == 1


def test_a_grammar_that_is_known_is_not_waited_for(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    queue.add(ask("one"))
    compiler.done.append(Compiled(key(), COMPILED))
    queue.released()
    queue.add(ask("two"))
    assert compiler.submitted == [key()]
    assert ready(queue) == ["two"]


def test_what_cannot_be_compiled_ends_the_request_and_names_its_field(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened
) -> None:
    queue.add(ask("one"))
    compiler.done.append(Compiled(key(), error="no way"))
    (end,) = queue.released().ended
    assert (end.request_id, end.finish_reason, end.refusal) == ("one", "error", "invalid")
    assert end.error == "field: no way"
    queue.add(ask("two"))
    (end,) = queue.released().ended
    assert end.error == "field: no way"
    assert compiler.submitted == [key()]
    assert matchers.live == []


def test_a_failure_that_is_not_the_grammars_is_not_remembered(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    queue.add(ask("one"))
    compiler.done.append(Compiled(key(), failure="no process"))
    (end,) = queue.released().ended
    assert (end.error, end.refusal) == ("no process", "uncompiled")
    queue.add(ask("two"))
    assert compiler.submitted == [key(), key()]


MISTAKE = Compiled(key(), error="no way")
AT_A_LIMIT = Compiled(key(), error="too slow", accident=True)
KILLED = Compiled(key(), failure="killed", accident=True)
BUSY = Compiled(key(), failure="too busy")
IT, NOT_IT, KNOWN = "invalid", "uncompiled", "known"


@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ([MISTAKE], [IT, KNOWN]),
        ([AT_A_LIMIT, AT_A_LIMIT], [IT, IT, KNOWN]),
        ([KILLED, KILLED], [NOT_IT, IT, KNOWN]),
        ([KILLED, AT_A_LIMIT], [NOT_IT, IT, KNOWN]),
        ([BUSY, BUSY, BUSY], [NOT_IT, NOT_IT, NOT_IT]),
        ([AT_A_LIMIT, BUSY, AT_A_LIMIT], [IT, NOT_IT, IT, KNOWN]),
    ],
    ids=["mistake", "limit", "killed", "killed and limit", "busy", "busy between"],
)
def test_an_accident_is_held_against_a_grammar_when_it_happens_again(
    queue: GrammarQueue, compiler: FakeCompiler, ends: list[Compiled], told: list[str]
) -> None:
    seen: list[str | None] = []
    for number in range(len(told)):
        queue.add(ask(str(number)))
        if number < len(ends):
            compiler.done.append(ends[number])
        (end,) = queue.released().ended
        seen.append(end.refusal if number < len(ends) else "known")
    assert seen == told
    assert len(compiler.submitted) == len(ends)


def test_compilations_are_counted_by_their_outcome(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    ends = [MISTAKE, AT_A_LIMIT, KILLED, BUSY, Compiled(key(), COMPILED)]
    compiler.done += [replace(end, seconds=0.5) for end in ends]
    queue.released()
    counted = ("compiled", "refused", "limit", "killed", "failed")
    assert queue.counts.compilations == dict.fromkeys(counted, 1)
    assert queue.counts.compile_seconds == 2.5


def test_a_grammar_that_compiles_after_an_accident_is_used(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    for end in (AT_A_LIMIT, Compiled(key(), COMPILED)):
        queue.add(ask("one"))
        compiler.done.append(end)
        released = queue.released()
    assert [message.request_id for message in released.ready] == ["one"]


def test_the_cache_forgets_old_accidents() -> None:
    cache = GrammarCache(max_entries=2)
    for text in "abc":
        cache.judged(Compiled(key(text), error="slow", accident=True))
    cache.judged(Compiled(key("a"), error="slow", accident=True))
    cache.judged(Compiled(key("c"), error="slow", accident=True))
    assert cache.get(key("a")) is None
    assert cache.get(key("c")) is not None


def test_a_warm_up_compilation_releases_no_request(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    compiler.done += [Compiled(key("b"), failure="no process"), Compiled(key(), COMPILED)]
    released = queue.released()
    assert (released.ready, released.ended) == ([], [])
    queue.add(ask("one"))
    assert ready(queue) == ["one"]
    assert compiler.submitted == []


def test_an_aborted_request_leaves_and_the_others_stay(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    for name in ("one", "two"):
        queue.add(ask(name))
    queue.abort("one")
    queue.abort("one")
    queue.abort("never update_done of")
    (end,) = queue.released().ended
    assert (end.request_id, end.finish_reason) == ("one", "abort")
    compiler.done.append(Compiled(key(), COMPILED))
    assert ready(queue) == ["two"]


def test_a_request_is_aborted_between_its_coming_and_its_start(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened
) -> None:
    queue.add(ask("one"))
    compiler.done.append(Compiled(key(), COMPILED))
    queue.released()
    for name in ("two", "three"):
        queue.add(ask(name))
    queue.abort("two")
    released = queue.released()
    assert [message.request_id for message in released.ready] == ["three"]
    assert [(end.request_id, end.finish_reason) for end in released.ended] == [("two", "abort")]
    assert matchers.live == ["one", "three"]


def test_a_compilation_without_waiting_requests_is_cached(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    queue.add(ask("one"))
    compiler.begun.add(key())
    queue.abort("one")
    queue.released()
    compiler.done.append(Compiled(key(), COMPILED))
    assert ready(queue) == []
    queue.add(ask("two"))
    assert ready(queue) == ["two"]
    assert compiler.submitted == [key()]


def test_a_compilation_without_waiting_requests_does_not_begin(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    for number in range(1000):
        queue.add(ask(f"gone {number}", f"slow {number}"))
        queue.abort(f"gone {number}")
    queue.add(ask("one"))
    queue.add(ask("two"))
    queue.abort("one")
    assert compiler.submitted == [key()]
    queue.abort("two")
    assert compiler.submitted == []
    queue.add(ask("three"))
    compiler.done.append(Compiled(key(), COMPILED))
    assert ready(queue) == ["three"]


@pytest.mark.parametrize("why", [SLOW_CALL, SLOW_ANSWER, BROKEN, CROWDED, STARVED, LOST])
def test_a_crowded_answer_ends_and_its_grammar_is_not_refused(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened, why: TooSlow
) -> None:
    queue.add(ask("one"))
    compiler.done.append(Compiled(key(), COMPILED))
    queue.released()
    matchers._slow.append((1, Slow("one", key(), "field", why)))
    (end,) = queue.given_up(step=1)
    own_fault = why.reason == "slow"
    refusal = "invalid" if own_fault else "uncompiled"
    assert (end.error, end.refusal) == (f"field: {why.error}", refusal)
    given_up = {reason: n for reason, n in queue.counts.given_up.items() if n}
    assert given_up == {why.reason: 1}
    queue.add(ask("two"))
    released = queue.released()
    assert bool(released.ready) is not own_fault
    assert bool(released.ended) is own_fault


def test_no_request_is_released_without_a_mask_worker(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened
) -> None:
    matchers.refuses = "being replaced"
    queue.add(ask("one"))
    compiler.done.append(Compiled(key(), COMPILED))
    (end,) = queue.released().ended
    assert (end.error, end.refusal) == ("being replaced", "uncompiled")
    matchers.refuses = None
    queue.add(ask("two"))
    assert ready(queue) == ["two"]


def test_an_ended_request_gives_its_matcher_back(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened
) -> None:
    queue.add(ask("one"))
    compiler.done.append(Compiled(key(), COMPILED))
    queue.released()
    queue.ended("one")
    queue.ended("one")
    assert matchers.live == []


def test_the_cache_evicts_the_least_recently_used() -> None:
    cache = GrammarCache(max_bytes=30, max_entries=3)
    for text in ("a", "b"):
        cache.put(Compiled(key(text), COMPILED, size_bytes=10))
    assert cache.get(key("a"))
    cache.put(Compiled(key("c"), COMPILED, size_bytes=10))
    assert [bool(cache.get(key(text))) for text in "abc"] == [True, False, True]
    cache.put(Compiled(key("c"), COMPILED, size_bytes=1))
    for text in "de":
        cache.put(Compiled(key(text), error="x"))
    assert [bool(cache.get(key(text))) for text in "acde"] == [False, True, True, True]
    cache.put(Compiled(key("huge"), COMPILED, size_bytes=100))
    assert not any(cache.get(key(text)) for text in ("c", "d", "e", "huge"))


def test_a_request_crosses_the_process_border_with_its_grammar() -> None:
    request = ask("one")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Generate) == request
