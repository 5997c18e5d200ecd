"""The grammar queue: waiting, passing, and what the cache keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from sluice_runtime.grammar import waiting
from sluice_runtime.grammar.masks import SLOW, STUCK, GivenUp, GiveUp, Matchers
from sluice_runtime.grammar.waiting import Compiled, CompileThread, GrammarKey, GrammarQueue
from sluice_runtime.wire.messages import Generate, Grammar, Sampling

from tests.runtime.grammar.fake_compiler import FakeCompiler

COMPILED = cast(Any, object())


class Opened(Matchers):
    """Remembers which requests were opened and closed."""

    def __init__(self) -> None:
        super().__init__(0)
        self.live: list[str] = []
        self.used = True

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
    compiler.done.append(Compiled(key(), failure="no memory"))
    (end,) = queue.released().ended
    assert (end.error, end.refusal) == ("field: no memory", "uncompiled")
    queue.add(ask("two"))
    assert compiler.submitted == [key(), key()]


def test_compilations_are_counted_by_their_outcome(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    ends = [Compiled(key(), COMPILED), Compiled(key(), error="no"), Compiled(key(), failure="no")]
    compiler.done += [replace(end, seconds=0.5) for end in ends]
    queue.released()
    assert queue.counts.compilations == dict.fromkeys(("compiled", "refused", "failed"), 1)
    assert queue.counts.compile_seconds == 1.5


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
    queue.abort("one")
    queue.released()
    compiler.done.append(Compiled(key(), COMPILED))
    assert ready(queue) == []
    queue.add(ask("two"))
    assert ready(queue) == ["two"]
    assert compiler.submitted == [key()]


@pytest.mark.parametrize("why", [SLOW, STUCK])
def test_an_answer_that_is_given_up_ends_and_a_slow_grammar_is_refused_from_then_on(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened, why: GiveUp
) -> None:
    queue.add(ask("one"))
    compiler.done.append(Compiled(key(), COMPILED))
    (message,) = queue.released().ready
    assert message.grammar is not None
    matchers._given_up.append((1, GivenUp("one", message.grammar, why)))
    (end,) = queue.given_up(step=1)
    assert (end.error, end.refusal) == (f"field: {why.error}", "invalid")
    assert queue.counts.given_up[why.reason] == 1
    queue.add(ask("two"))
    assert bool(queue.released().ended) is (why is SLOW)


def test_an_ended_request_gives_its_matcher_back(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened
) -> None:
    queue.add(ask("one"))
    compiler.done.append(Compiled(key(), COMPILED))
    queue.released()
    queue.ended("one")
    queue.ended("one")
    assert matchers.live == []


def test_grammars_that_were_not_used_for_longest_are_forgotten(
    queue: GrammarQueue, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_KEPT", 2)
    monkeypatch.setattr(waiting, "MAX_KEPT_CHARACTERS", 10)

    def asked(text: str) -> bool:
        """Whether it has to be compiled."""
        compiler.submitted.clear()
        queue.add(ask(text, text))
        compiler.done += [Compiled(key, COMPILED) for key in compiler.submitted]
        queue.released()
        return bool(compiler.submitted)

    assert [asked(text) for text in "abacba"] == [True, True, False, True, True, True]
    assert asked("long" * 3)
    assert asked("a"), "of all there is no room for more"


def test_the_thread_compiles_and_wakes_the_engine() -> None:
    woken: list[int] = []
    thread = CompileThread(lambda: [b"a", b"b"], lambda: woken.append(1))
    for text in ("a", "(a", "b"):
        thread.submit(key(text))
    thread.close()
    thread._thread.join()
    done = thread.finished()
    assert [bool(one.matcher) for one in done] == [True, False, True]
    assert done[1].error == "unclosed group"
    assert len(woken) == 3
    assert thread.finished() == []


def test_a_failure_of_the_library_ends_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Compiled:
        raise RuntimeError("no")

    thread = CompileThread(lambda: [b"a"], lambda: None)
    monkeypatch.setattr(waiting, "compiled", fails)
    thread.submit(key())
    thread.close()
    thread._thread.join()
    assert [one.failure for one in thread.finished()] == ["the grammar library failed with it"]


def test_a_request_crosses_the_process_border_with_its_grammar() -> None:
    request = ask("one")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Generate) == request
