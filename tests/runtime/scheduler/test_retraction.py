"""Who goes back to the queue, in which order, and when nobody does."""

from __future__ import annotations

from sluice_runtime.scheduler.prefix_cache import Lock, Node
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.retraction import plan_retraction
from sluice_runtime.wire.messages import Sampling

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to


def running(name: str, prompt: int, output: int, pages: int) -> Request:
    """A row whose next token opens a page."""
    tokens = list(range(prompt + output))
    made = Request(name, tokens, prompt, 100, Sampling(), frozenset(), False, 0.0)
    made.page_ids, made.computed_tokens = list(range(pages)), pages * 4
    made.lock = Lock(Node(None, None, 0), 0, 0)
    return made


def test_fewest_output_tokens_then_longest_input() -> None:
    rows = [
        running("many", 10, 9, 1),
        running("few-short", 10, 2, 1),
        running("few-long", 30, 2, 1),
        running("most", 10, 20, 1),
    ]
    plan = plan_retraction(rows, None, 0, 4)
    assert [victim.request_id for victim in plan.victims] == ["few-long", "few-short"]
    assert (plan.reason, plan.stuck) == ("PoolFull", None)
    assert plan.message == "decode wants 4 pages, 0 are free or cached"


def test_nobody_goes_when_the_pages_are_there() -> None:
    assert plan_retraction([running("a", 4, 0, 1)], None, 1, 4).victims == ()


def test_the_last_row_takes_the_pages_of_a_prompt_in_the_making() -> None:
    prompt = running("prompt", 40, 0, 10)
    plan = plan_retraction([running("a", 4, 3, 1)], prompt, 0, 4)
    assert plan.victims == (prompt,)
    assert plan.stuck is None


def test_a_row_that_cannot_go_on_alone_is_named() -> None:
    row = running("a", 4, 3, 1)
    plan = plan_retraction([row], None, 0, 4)
    assert (plan.victims, plan.stuck, plan.reason) == ((), row, "PoolTooSmall")


def test_a_retracted_request_resumes_with_what_it_generated() -> None:
    bench = Bench(settings_of(pool_tokens=64, conservativeness=0.05))
    names = "abcd"
    bench.add(*(request(name, 4 + i, 40) for i, name in enumerate(names)))
    batches = bench.run()
    assert bench.scheduler.status().retractions > 0
    resumed = [e for b in batches for e in b.extend_rows if e.start == 0 and len(e.token_ids) > 8]
    assert resumed, "no request was resumed with its output"
    for i, name in enumerate(names):
        assert bench.answers[name] == answer_to(range(4 + i), 40)


def test_retraction_admits_nothing_in_the_same_step() -> None:
    bench = Bench(settings_of(pool_tokens=64, conservativeness=0.05))
    bench.add(*(request(name, 4, 40) for name in "abcdef"))
    seen = 0
    for _ in range(100):
        batch = bench.step()
        if batch and (now := bench.scheduler.status().retractions) > seen:
            seen = now
            assert not batch.added_rows
    assert seen


def test_a_retracted_request_resumes_before_later_arrivals() -> None:
    bench = Bench(settings_of(pool_tokens=64, conservativeness=0.05, max_running_requests=4))
    bench.add(*(request(name, 4, 40) for name in "abcd"), request("later", 4, 40))
    batches = bench.run()
    assert bench.scheduler.status().retractions > 0
    added = [row.request_id for batch in batches for row in batch.added_rows]
    resumed = next(i for i, name in enumerate(added) if name in added[:i])
    assert resumed < added.index("later")
