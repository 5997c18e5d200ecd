"""The grammar queue: waiting, passing, and how requests end there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
from llguidance import LLMatcher
from sluice_runtime.grammar import constraint, waiting
from sluice_runtime.grammar.masks import FAILED, SLOW, STUCK, GivenUp, GiveUp, Matchers
from sluice_runtime.grammar.waiting import Compiled, CompileThread, GrammarQueue
from sluice_runtime.wire.messages import Generate, Grammar, Sampling

from tests.runtime.grammar.fake_compiler import FakeCompiler

COMPILED = Compiled(cast(Any, object()))
MOST = 4


class Opened(Matchers):
    """Remembers which requests were opened and closed."""

    def __init__(self) -> None:
        super().__init__(0)
        self.live: list[str] = []
        self.used = True

    def open(self, message: Generate, compiled: object) -> None:
        assert compiled is COMPILED.grammar
        self.live.append(message.request_id)

    def close(self, request_id: str) -> None:
        if request_id in self.live:
            self.live.remove(request_id)


def ask(name: str, text: str = "a", tenant: str = "") -> Generate:
    grammar = Grammar("regex", text, [9], "field")
    return Generate(name, [1, 2, 3], 5, Sampling(), grammar=grammar, tenant=tenant)


@pytest.fixture
def compiler() -> FakeCompiler:
    return FakeCompiler()


@pytest.fixture
def matchers() -> Opened:
    return Opened()


@pytest.fixture
def queue(compiler: FakeCompiler, matchers: Opened) -> GrammarQueue:
    return GrammarQueue(compiler, matchers, MOST)


def ready(queue: GrammarQueue) -> list[str]:
    return [message.request_id for message in queue.released().ready]


def test_a_request_waits_until_its_grammar_is_compiled(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened
) -> None:
    queue.add(ask("one"))
    assert ready(queue) == []
    assert (len(queue), queue.prompt_tokens) == (1, 3)
    compiler.finish(COMPILED)
    assert ready(queue) == ["one"]
    assert matchers.live == ["one"]
    assert (len(queue), queue.prompt_tokens) == (0, 0)
    assert ready(queue) == []


def test_each_request_is_compiled_for_alone(queue: GrammarQueue, compiler: FakeCompiler) -> None:
    for name in ("one", "two"):
        queue.add(ask(name))
    assert compiler.submitted == ["a", "a"]
    compiler.finish(COMPILED)
    assert ready(queue) == ["one"]
    assert len(queue) == 1


def test_only_so_many_matchers_live_at_once(queue: GrammarQueue, compiler: FakeCompiler) -> None:
    for number in range(MOST + 2):
        queue.add(ask(f"r{number}", f"p{number}"))
    queue.abort("r0")
    assert compiler.submitted == ["p0", "p1", "p2", "p3"]
    assert len(queue) == MOST + 1
    compiler.finish(*[COMPILED] * MOST)
    assert ready(queue) == ["r1", "r2", "r3"]
    assert compiler.submitted[MOST:] == ["p4"]
    queue.ended("r2")
    assert compiler.submitted[MOST:] == ["p4", "p5"]
    compiler.finish(Compiled(error="no"), Compiled(failure="no"))
    queue.released()
    for number in range(10, 13):
        queue.add(ask(f"r{number}", f"p{number}"))
    assert compiler.submitted[MOST + 2 :] == ["p10", "p11"]


def test_the_thread_is_given_a_few_grammars_at_once(compiler: FakeCompiler) -> None:
    queue = GrammarQueue(compiler, Opened(), 2 * waiting.MAX_COMPILING)
    for number in range(waiting.MAX_COMPILING + 1):
        queue.add(ask(f"r{number}"))
    assert len(compiler.submitted) == waiting.MAX_COMPILING
    compiler.finish(COMPILED)
    queue.released()
    assert len(compiler.submitted) == waiting.MAX_COMPILING + 1


def test_tenants_take_turns(compiler: FakeCompiler) -> None:
    queue = GrammarQueue(compiler, Opened(), 1)
    for number in range(3):
        for tenant in ("a", "b"):
            queue.add(ask(f"{tenant}{number}", tenant=tenant))
    queue.add(ask("c0", tenant="c"))
    order = []
    for _ in range(7):
        compiler.finish(COMPILED)
        (name,) = ready(queue)
        order.append(name)
        queue.ended(name)
    assert order == ["a0", "b0", "a1", "c0", "b1", "a2", "b2"]
    assert len(queue) == 0


def test_the_tenant_with_the_fewest_matchers_is_next(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    for number in range(8):
        queue.add(ask(f"a{number}", tenant="a"))
    queue.add(ask("b0", "b", tenant="b"))
    compiler.finish(*[COMPILED] * MOST)
    queue.released()
    queue.ended("a0")
    assert compiler.submitted[-1] == "b"


def test_what_cannot_be_compiled_ends_the_request_and_names_its_field(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened
) -> None:
    queue.add(ask("one"))
    compiler.finish(Compiled(error="no way"))
    (end,) = queue.released().ended
    assert (end.request_id, end.finish_reason, end.refusal) == ("one", "error", "invalid")
    assert end.error == "field: no way"
    assert matchers.live == []


def test_a_failure_that_is_not_the_grammars_is_no_refusal(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    queue.add(ask("one"))
    compiler.finish(Compiled(failure="no memory"))
    (end,) = queue.released().ended
    assert (end.error, end.refusal) == ("field: no memory", "uncompiled")


def test_compilations_are_counted_by_their_outcome(
    queue: GrammarQueue, compiler: FakeCompiler
) -> None:
    ends = [COMPILED, Compiled(error="no"), Compiled(failure="no")]
    for number in range(len(ends)):
        queue.add(ask(str(number)))
    compiler.finish(*[replace(end, seconds=0.5) for end in ends])
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
    compiler.finish(COMPILED, COMPILED)
    assert ready(queue) == ["two"]


def test_a_request_that_is_aborted_twice_ends_once(
    queue: GrammarQueue, matchers: Opened, compiler: FakeCompiler
) -> None:
    for name in ("one", "two"):
        queue.add(ask(name))
    compiler.finish(COMPILED, COMPILED)
    for _ in range(2):
        queue.abort("one")
    released = queue.released()
    assert [message.request_id for message in released.ready] == ["two"]
    assert [(end.request_id, end.finish_reason) for end in released.ended] == [("one", "abort")]
    assert matchers.live == ["two"]


@pytest.mark.parametrize("why", [SLOW, STUCK, FAILED])
def test_an_answer_that_is_given_up_ends_with_the_reason(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened, why: GiveUp
) -> None:
    queue.add(ask("one"))
    compiler.finish(COMPILED)
    (message,) = queue.released().ready
    assert message.grammar is not None
    matchers._given_up.append((1, GivenUp("one", message.grammar, why)))
    (end,) = queue.given_up(step=1)
    refusal = "uncompiled" if why is FAILED else "invalid"
    assert (end.error, end.refusal) == (f"field: {why.error}", refusal)
    assert queue.counts.given_up[why.reason] == 1


def test_an_ended_request_gives_its_matcher_back(
    queue: GrammarQueue, compiler: FakeCompiler, matchers: Opened
) -> None:
    queue.add(ask("one"))
    compiler.finish(COMPILED)
    queue.released()
    queue.ended("one")
    queue.ended("one")
    assert matchers.live == []


def finished(thread: CompileThread, *texts: str) -> list[Compiled]:
    for job, text in enumerate(texts):
        thread.submit(job, Grammar("regex", text, [9], "field"))
    thread.close()
    assert thread._thread is not None
    thread._thread.join()
    numbered = thread.finished()
    assert [job for job, _ in numbered] == list(range(len(texts)))
    return [done for _, done in numbered]


def test_the_thread_compiles_and_wakes_the_engine() -> None:
    woken: list[int] = []
    thread = CompileThread(lambda: [b"a", b"b"], lambda: woken.append(1))
    done = finished(thread, "a", "(a", "b")
    assert [bool(one.grammar) for one in done] == [True, False, True]
    assert done[1].error == "unclosed group"
    assert len(woken) == 3
    assert thread.finished() == []


def test_a_vocabulary_that_cannot_be_read_fails_each_grammar(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails() -> list[bytes]:
        raise OSError("no file")

    woken: list[int] = []
    done = finished(CompileThread(fails, lambda: woken.append(1)), "a", "b")
    assert [bool(one.failure) for one in done] == [True, True]
    assert len(woken) == 2
    assert len(caplog.records) == 1


def test_a_thread_that_cannot_be_started_fails_its_grammars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    thread = CompileThread(lambda: [b"a"], lambda: None)
    monkeypatch.setattr(waiting, "start_deep_thread", fails)
    thread.submit(7, Grammar("regex", "a", [9], "field"))
    ((job, done),) = thread.finished()
    assert (job, bool(done.failure)) == (7, True)


def test_a_failure_of_the_library_ends_no_other_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Compiled:
        raise RuntimeError("no")

    thread = CompileThread(lambda: [b"a"], lambda: None)
    monkeypatch.setattr(waiting, "compiled", fails)
    assert [one.failure for one in finished(thread, "a")] == ["the grammar library failed with it"]


def test_a_panic_of_the_library_is_a_failure_and_no_refusal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Panics:
        grammar_from_regex = LLMatcher.grammar_from_regex

        def __init__(self, *_: object, **__: object) -> None: ...
        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return "panic: index too large\n   0: some_function\n"

    monkeypatch.setattr(constraint, "LLMatcher", Panics)
    (done,) = finished(CompileThread(lambda: [b"a"], lambda: None), "a")
    assert (done.error, done.failure) == ("", "the grammar library failed with it")
    assert "panic: index too large" in caplog.text


def test_a_request_crosses_the_process_border_with_its_grammar() -> None:
    request = ask("one")
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=Generate) == request
