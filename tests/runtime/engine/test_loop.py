"""The loop's turns: messages in, one step, one message out."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count, pairwise

import msgspec
import pytest
from sluice_runtime.engine.executors import executor_for
from sluice_runtime.engine.loop import (
    LOAD_SECONDS,
    Clock,
    EngineLoop,
    Pipeline,
)
from sluice_runtime.engine.outbox import Outbox
from sluice_runtime.engine.report import StepLog
from sluice_runtime.scheduler.kv_allocator import PageAllocator
from sluice_runtime.scheduler.scheduler import Scheduler
from sluice_runtime.scheduler.settings import SchedulerSettings, StepTarget
from sluice_runtime.scheduler.status import Status
from sluice_runtime.wire.messages import (
    Abort,
    Credit,
    Drain,
    FlushCache,
    Generate,
    Grammar,
    Heartbeat,
    Sampling,
    StepResult,
    ToApi,
    ToEngine,
)

from tests.runtime.grammar.fake_compiler import no_grammars
from tests.runtime.scheduler.building import settings_of
from tests.runtime.scheduler.fake_runner import FakeRunner, answer_to


class FakeLink:
    """Returns one list of messages per poll; records sent messages and poll timeouts."""

    def __init__(self) -> None:
        self.coming: deque[list[ToEngine]] = deque()
        self.sent: list[ToApi] = []
        self.waits: list[float] = []

    def poll(self, timeout_seconds: float) -> list[ToEngine]:
        self.waits.append(timeout_seconds)
        return self.coming.popleft() if self.coming else []

    def send(self, message: ToApi) -> None:
        self.sent.append(message)

    @property
    def steps(self) -> list[StepResult]:
        return [message for message in self.sent if isinstance(message, StepResult)]

    def answer(self, request_id: str) -> list[int]:
        deltas = [delta for step in self.steps for delta in step.deltas]
        return [t for delta in deltas if delta.request_id == request_id for t in delta.token_ids]

    def ends(self, request_id: str) -> list[tuple[str | None, str | None]]:
        deltas = [delta for step in self.steps for delta in step.deltas]
        ended = [d for d in deltas if d.request_id == request_id and d.finish_reason]
        return [(delta.finish_reason, delta.error) for delta in ended]


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def loop(link: FakeLink) -> EngineLoop:
    return loop_on(link)


def loop_on(link: FakeLink, prefix_cache: bool = False, clock: Clock | None = None) -> EngineLoop:
    settings = settings_of(
        pool_tokens=32_768, page_size=16, chunk_size=64, prefix_cache=prefix_cache
    )
    scheduler = Scheduler(settings, PageAllocator(2048))
    ticks = count()
    clock = clock or Clock(monotonic=lambda: float(next(ticks)), unix=lambda: 1.7e9)
    executor = executor_for(FakeRunner(2048, 16), overlap=False)
    return EngineLoop(
        link, Pipeline(no_grammars(), scheduler, executor), lambda pace: StepLog(16, pace), clock
    )


def ask(name: str, prompt: int, max_tokens: int, credit: int = 4096) -> Generate:
    return Generate(name, list(range(prompt)), max_tokens, Sampling(), credit_tokens=credit)


def turns(loop: EngineLoop, number: int) -> None:
    for _ in range(number):
        loop.step()


def test_one_message_a_step_carries_all_tokens_and_the_load(
    link: FakeLink, loop: EngineLoop
) -> None:
    link.coming.append([ask("a", 5, 3), ask("b", 6, 2)])
    turns(loop, 3)
    assert [step.mode for step in link.steps] == ["EXTEND", "DECODE", "DECODE"]
    assert [len(step.deltas) for step in link.steps] == [2, 2, 1]
    assert link.steps[1].plain.request_ids == ["a"]
    assert [delta.request_id for delta in link.steps[1].special] == ["b"]
    assert link.answer("a") == answer_to(range(5), 3)
    last = link.steps[-1]
    assert (last.load.figures.running_requests, last.load.figures.kv_pages_free) == (0, 2048)
    steps = {mode: count for mode, count in last.load.steps.items() if count}
    assert steps == {"EXTEND": 1, "DECODE": 2}
    assert last.load.time_seconds == 1.7e9
    assert last.step_seconds > last.scheduler_seconds > 0


@dataclass
class Bench:
    """A loop whose clock stands still, and how often its scheduler was asked for its status."""

    link: FakeLink
    loop: EngineLoop
    statuses: list[Status]
    now: list[float]

    def loads(self, turns_made: int) -> int:
        """Loads that these turns made."""
        before = len(self.statuses)
        turns(self.loop, turns_made)
        return len(self.statuses) - before


@pytest.fixture
def bench(link: FakeLink, monkeypatch: pytest.MonkeyPatch) -> Bench:
    now, statuses = [5.0], list[Status]()
    status = Scheduler.status

    def counted(scheduler: Scheduler) -> Status:
        statuses.append(status(scheduler))
        return statuses[-1]

    monkeypatch.setattr(Scheduler, "status", counted)
    loop = loop_on(link, clock=Clock(monotonic=lambda: now[0], unix=lambda: 1.7e9))
    return Bench(link, loop, statuses, now)


def test_decode_steps_make_a_load_once_in_ten_milliseconds(bench: Bench) -> None:
    """Each repeats the last one meanwhile, without what was expected of that step."""
    bench.link.coming.append([ask("a", 5, 50)])
    assert bench.loads(1) == 1
    assert bench.loads(2) == 0
    bench.link.coming.append([Credit("a", 1)])
    assert bench.loads(1) == 0
    assert {step.predicted_seconds for step in bench.link.steps[1:]} == {0.0}
    assert bench.link.steps[-1].load == bench.link.steps[0].load
    bench.now[0] += 2 * LOAD_SECONDS
    assert bench.loads(4) == 1
    assert bench.link.steps[-1].load.figures.generated_tokens_total == 5


def test_a_load_is_made_at_once_when_more_than_counts_of_tokens_has_changed(bench: Bench) -> None:
    link = bench.link
    link.coming.append([ask("a", 5, 3), ask("b", 5, 30)])
    assert bench.loads(2) == 1
    assert bench.loads(1) == 1, "an answer has ended"
    assert link.steps[-1].load.figures.running_requests == 1
    assert bench.loads(1) == 1, "its row is dropped"
    assert bench.loads(2) == 0
    link.coming.append([FlushCache()])
    assert bench.loads(2) == 1, "a message"
    link.coming.append([ask("c", 90, 30)])
    assert bench.loads(2) == 2, "chunks of a prompt"
    assert link.steps[-1].load.figures.running_requests == 2
    turns(bench.loop, 2)
    link.coming.append([Abort("b")])
    turns(bench.loop, 1)
    assert link.steps[-1].load.figures.running_requests == 1
    turns(bench.loop, 60)
    assert link.steps[-1].load.figures.running_requests == 0
    assert link.steps[-1].load.figures.kv_pages_free == 2048


def test_the_load_counts_prompts_without_what_was_cached_and_requests_that_finished(
    link: FakeLink,
) -> None:
    loop = loop_on(link, prefix_cache=True)
    link.coming.append([ask("a", 40, 3)])
    turns(loop, 4)
    assert not link.steps[-1].load.figures.queued_tokens
    link.coming.append([ask("b", 40, 2), ask("c", 50, 400)])
    turns(loop, 3)
    link.coming.append([Abort("c")])
    turns(loop, 2)
    load = link.steps[-1].load
    assert load.figures.prompt_tokens_total == 40 + (40 - 32) + (
        50 - 32
    )  # two whole pages were cached
    assert load.figures.finished_requests_total == 2
    assert load.figures.generated_tokens_total == len(
        link.answer("a") + link.answer("b") + link.answer("c")
    )
    assert load.figures.prefill_tokens_per_second is not None
    assert load.figures.itl_seconds is not None


def test_the_load_has_what_steps_cost(link: FakeLink) -> None:
    loop = loop_on(link)
    link.coming.append([ask("a", 5, 60)])
    turns(loop, 70)
    costs = link.steps[-1].load.figures.costs
    assert costs is not None
    assert costs.prefill is None, "one step is not enough"
    assert costs.decode is not None
    assert costs.decode.steps >= 59
    assert costs.decode.mean[:4] == pytest.approx((1, 0, 0, 1))
    assert costs.decode.mean[4] > 5


def test_it_waits_for_messages_and_sends_heartbeats_only_while_idle(
    link: FakeLink, loop: EngineLoop
) -> None:
    turns(loop, 2)
    assert all(isinstance(message, Heartbeat) for message in link.sent)
    link.coming.append([ask("a", 5, 3)])
    turns(loop, 5)
    assert link.waits == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]


def test_it_does_not_poll_for_a_grammar_that_is_compiled(link: FakeLink, loop: EngineLoop) -> None:
    grammar = Grammar("regex", "a", [258], "response_format")
    link.coming.append([msgspec.structs.replace(ask("a", 5, 3), grammar=grammar)])
    turns(loop, 3)
    assert link.waits == [1.0, 1.0, 1.0]


def test_integrity_is_checked_once_per_idle_period_and_not_between_requests(
    link: FakeLink, loop: EngineLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Scheduler] = []
    monkeypatch.setattr(Scheduler, "check_integrity", lambda scheduler: seen.append(scheduler))
    link.coming.append([ask("a", 5, 3)])
    turns(loop, 3)
    assert not seen
    turns(loop, 5)
    assert len(seen) == 1


def test_an_abort_ends_the_request_once(link: FakeLink, loop: EngineLoop) -> None:
    link.coming.append([ask("a", 5, 300)])
    link.coming.append([Abort("a"), Abort("a"), Abort("unknown")])
    turns(loop, 4)
    assert link.ends("a") == [("abort", None)]
    assert link.steps[-1].load.figures.kv_pages_free == 2048


def test_tokens_are_withheld_without_credit_and_released_even_while_idle(
    link: FakeLink, loop: EngineLoop
) -> None:
    link.coming.append([ask("a", 5, 6, credit=2)])
    turns(loop, 4)
    assert link.answer("a") == answer_to(range(5), 2)
    link.coming.append([Credit("a", 1)])
    turns(loop, 1)
    assert link.answer("a") == answer_to(range(5), 3)
    turns(loop, 3)
    assert link.answer("a") == answer_to(range(5), 6)
    assert link.ends("a") == [("length", None)]


def test_a_request_whose_client_stopped_reading_is_ended(link: FakeLink, loop: EngineLoop) -> None:
    loop._outbox = Outbox(max_withheld_tokens=64)
    link.coming.append([ask("a", 5, 9000, credit=10)])
    turns(loop, 100)
    (end,) = link.ends("a")
    assert end[0] == "error"
    assert "slow reader" in (end[1] or "")
    assert link.answer("a") == answer_to(range(5), 10 + 64 + 1)
    assert link.steps[-1].load.figures.kv_pages_free == 2048


def test_flushing_empties_the_prefix_cache(caplog: pytest.LogCaptureFixture) -> None:
    link = FakeLink()
    scheduler = Scheduler(settings_of(prefix_cache=True), PageAllocator(64))
    executor = executor_for(FakeRunner(64, 4), overlap=False)
    loop = EngineLoop(
        link, Pipeline(no_grammars(), scheduler, executor), lambda pace: StepLog(4, pace)
    )
    link.coming += [[ask("a", 9, 1)], [ask("b", 9, 1)], [FlushCache()], [ask("c", 9, 1)]]
    with caplog.at_level(logging.INFO, "sluice.engine"):
        turns(loop, 4)
    deltas = [delta for step in link.steps for delta in step.deltas]
    assert [(d.request_id, d.cached_tokens) for d in deltas] == [("a", 0), ("b", 8), ("c", 0)]
    assert [step.load.figures.kv_pages_evictable for step in link.steps] == [2, 2, 2]
    cached = [r.getMessage().split("#cached-token: ")[1][0] for r in caplog.records]
    assert cached == ["0", "8", "0"]


def test_draining_finishes_accepted_requests_and_refuses_new_ones(
    link: FakeLink, loop: EngineLoop
) -> None:
    link.coming.append([ask("a", 5, 4), Drain()])
    link.coming.append([ask("late", 5, 4)])
    turns(loop, 6)
    assert link.ends("a") == [("length", None)]
    ((reason, error),) = link.ends("late")
    assert reason == "error"
    assert "draining" in (error or "")
    refusals = [d.refusal for step in link.steps for d in step.deltas if d.request_id == "late"]
    assert refusals == ["unavailable"]


def test_a_refusal_is_reported_without_a_forward_pass(link: FakeLink, loop: EngineLoop) -> None:
    link.coming.append([ask("a", 40_000, 4)])
    turns(loop, 1)
    assert [step.mode for step in link.steps] == ["IDLE"]
    assert "context length of 10000" in (link.ends("a")[0][1] or "")


def test_the_prefill_rate_predicts_the_queued_work(link: FakeLink, loop: EngineLoop) -> None:
    link.coming.append([ask("a", 200, 2)])
    turns(loop, 1)
    load = link.steps[0].load
    # 64 tokens in two ticks, one of which it took to plan the step; 136 to go.
    assert load.figures.queued_tokens == 136
    assert load.figures.queued_work_seconds == pytest.approx(136 / 32)


def test_log_lines_have_the_form_that_operators_know(
    link: FakeLink, loop: EngineLoop, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sluice.engine"):
        link.coming.append([ask("a", 100, 60)])
        turns(loop, 1)
        link.coming.append([ask("b", 8, 60)])
        turns(loop, 45)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[:4] == [
        "Prefill batch. #new-seq: 1, #new-token: 64, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0",
        "Chunked prefill. rid: a, #done-token: 64, #total-token: 100",
        "Prefill batch. #new-seq: 2, #new-token: 44, #cached-token: 0, token usage: 0.00, "
        "#running-req: 0, #queue-req: 0",
        lines[3],
    ]
    assert lines[3].startswith("Decode batch. #running-req: 2, #token: 192, token usage: 0.01, ")
    assert "gen throughput (token/s): " in lines[3]
    assert lines[3].endswith("#queue-req: 0")


def ticking(
    link: FakeLink, settings: SchedulerSettings, monotonic: Callable[[], float]
) -> EngineLoop:
    """A loop with a clock of its own."""
    return EngineLoop(
        link,
        Pipeline(
            no_grammars(),
            Scheduler(settings, PageAllocator(2048)),
            executor_for(FakeRunner(2048, 16), overlap=False),
        ),
        lambda pace: StepLog(16, pace),
        Clock(monotonic=monotonic, unix=lambda: 1.7e9),
    )


def test_decode_lines_are_a_second_apart(link: FakeLink, caplog: pytest.LogCaptureFixture) -> None:
    ticks = count()
    settings = settings_of(pool_tokens=32_768, page_size=16, chunk_size=64)
    loop = ticking(link, settings, lambda: next(ticks) / 512)
    link.coming.append([ask("a", 8, 1000)])
    with caplog.at_level(logging.INFO, "sluice.engine"):
        turns(loop, 400)
    seconds = next(ticks) / 512
    lines = [line for line in caplog.messages if line.startswith("Decode batch.")]
    assert seconds - 2 < len(lines) <= seconds + 1


def test_with_a_target_the_prefill_line_names_the_chunk_budget_and_its_reason(
    link: FakeLink, caplog: pytest.LogCaptureFixture
) -> None:
    target = StepTarget(seconds=3.0, share=0.9, start_tokens=32)
    settings = settings_of(pool_tokens=32_768, page_size=16, chunk_size=64, target=target)
    ticks = count()
    loop = ticking(link, settings, lambda: float(next(ticks)))
    link.coming.append([ask("a", 100, 2)])
    with caplog.at_level(logging.INFO, "sluice.engine"):
        turns(loop, 2)
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("Prefill")]
    chosen = "chunk budget: 32 (Learning: too few steps have been seen)"
    assert f"#queue-req: 0, {chosen}, step: 2000.0 ms, predicted: 0.0 ms" in lines[0]
    assert "chunk budget: 16 (Learning" in lines[1]
    report = link.steps[1].load
    assert (report.chunk_budget_tokens, report.chunk_budgets) == (16, {"Learning": 2})
    assert link.steps[1].predicted_seconds > 0


def test_once_the_cost_of_steps_is_known_it_predicts_the_queued_work(
    link: FakeLink, loop: EngineLoop
) -> None:
    link.coming.append([ask("a", 200, 2), ask("b", 250, 2), ask("c", 250, 2), ask("d", 250, 2)])
    turns(loop, 12)
    load = link.steps[-1].load
    # A step of 64 tokens takes as long as the ones before it: from one result to the next.
    gaps = [later.finished_seconds - s.finished_seconds for s, later in pairwise(link.steps)]
    assert load.figures.queued_tokens > 100
    assert load.figures.queued_work_seconds == pytest.approx(
        load.figures.queued_tokens / 64 * gaps[-1], rel=0.2
    )
