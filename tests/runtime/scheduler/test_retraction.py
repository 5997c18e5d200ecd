"""Who goes back to the queue, in which order, and when nobody does: for pages, and for a far more
urgent request."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler.prefix_cache import Lock
from sluice_runtime.scheduler.prefix_node import Node
from sluice_runtime.scheduler.request import Request
from sluice_runtime.scheduler.retraction import plan_retraction
from sluice_runtime.wire.messages import Sampling

from tests.examples import examples
from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to


def running(name: str, prompt: int, output: int, pages: int) -> Request:
    """A row whose next token opens a page."""
    tokens = list(range(prompt + output))
    made = Request(name, tokens, prompt, 100, Sampling(), frozenset(), False, 0.0)
    made.page_ids, made.computed_tokens = list(range(pages)), pages * 4
    made.lock = Lock(Node(None, None, 0), 0, 0)
    return made


def nowhere(request: Request) -> bool:
    """Whether a transfer uses its pages."""
    return False


def test_fewest_output_tokens_then_longest_input() -> None:
    rows = [
        running("many", 10, 9, 1),
        running("few-short", 10, 2, 1),
        running("few-long", 30, 2, 1),
        running("most", 10, 20, 1),
    ]
    plan = plan_retraction(rows, None, 4, 0, 4, nowhere)
    assert [victim.request_id for victim in plan.victims] == ["few-long", "few-short"]
    assert (plan.reason, plan.stuck) == ("PoolFull", None)
    assert plan.message == "decode needs 4 pages, 0 are free or cached"


def test_the_last_row_takes_the_pages_of_a_prompt_in_the_making() -> None:
    prompt = running("prompt", 40, 0, 10)
    plan = plan_retraction([running("a", 4, 3, 1)], prompt, 1, 0, 4, nowhere)
    assert plan.victims == (prompt,)
    assert plan.stuck is None


def test_a_row_that_cannot_go_on_alone_is_named() -> None:
    row = running("a", 4, 3, 1)
    plan = plan_retraction([row], None, 1, 0, 4, nowhere)
    assert (plan.victims, plan.stuck, plan.reason) == ((), row, "PoolTooSmall")


def test_a_prompt_that_is_read_stays_and_its_pages_are_waited_for() -> None:
    prompt, row = running("prompt", 40, 0, 10), running("a", 4, 3, 1)
    prompt.transfers.add("transfer")
    plan = plan_retraction([row], prompt, 1, 0, 4, lambda request: request is prompt)
    assert (plan.victims, plan.stuck, plan.reason) == ((row,), None, "PoolFull")


def test_a_row_whose_pages_are_read_goes_last_and_gives_none() -> None:
    rows = [running("read", 4, 1, 2), running("a", 4, 5, 1), running("b", 4, 9, 1)]
    rows[0].transfers.add("transfer")
    for available, names in ((0, ["a", "b"]), (-2, ["a", "b", "read"])):
        plan = plan_retraction(rows, None, 3, available, 4, lambda request: request is rows[0])
        assert [victim.request_id for victim in plan.victims] == names
        assert plan.stuck is None


@pytest.mark.parametrize("seed", [4, 19, 20, 42])
def test_pages_that_a_transfer_uses_are_not_given_to_rows(seed: int) -> None:
    draw = random.Random(seed)
    bench = Bench(settings_of(64, conservativeness=0.05, chunk_size=8, prefix_cache=seed % 2 == 0))
    transfers: list[str] = []
    for number in range(150):
        holders = [r for r in bench.scheduler._table.requests if r.row is not None]
        match draw.choice(["add", "add", "begin", "begin", "end", *["step"] * 5]):
            case "add":
                prompt = [draw.randrange(2)] * draw.randint(1, 30)
                bench.add(request(f"r{number}", prompt, draw.randint(1, 30)))
            case "begin" if holders:
                transfers.append(f"transfer {number}")
                bench.scheduler.begin_transfer(draw.choice(holders).request_id, transfers[-1])
            case "end" if transfers:
                bench.scheduler.end_transfer(transfers.pop(draw.randrange(len(transfers))))
            case "step":
                bench.step()
    for transfer in transfers:
        bench.scheduler.end_transfer(transfer)
    bench.run()
    assert bench.scheduler.status().retractions
    assert {len(ends) for ends in bench.terminals.values()} == {1}


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


def bench_of(**changed: Any) -> Bench:
    values: dict[str, Any] = {"policy": "priority", "pool_tokens": 128, "prefix_cache": False}
    return Bench(settings_of(**(values | changed)))


def running_of(bench: Bench) -> set[str]:
    return {request.request_id for request in bench.scheduler._table.running}


def filled(bench: Bench, priorities: dict[str, int], answer: int = 40) -> None:
    """These run, one after another."""
    for index, (name, priority) in enumerate(priorities.items()):
        prompt = range(index, index + 12)
        bench.add(request(name, prompt, answer, priority=priority, ignore_eos=True))
        bench.step()
    bench.step()
    assert running_of(bench) == set(priorities)


def test_the_lowest_priority_goes_first_and_of_equal_ones_the_newest() -> None:
    bench = bench_of(max_running_requests=3)
    filled(bench, {"old": 0, "new": 0, "higher": 5}, answer=20)
    bench.add(request("urgent", 8, 4, priority=20))
    batch = bench.step()
    assert batch
    assert [row.request_id for row in batch.added_rows] == ["urgent"]
    assert running_of(bench) >= {"old", "higher"}
    assert "new" not in running_of(bench)
    bench.run()
    assert bench.answers["new"] == answer_to(range(1, 13), 20)


@pytest.mark.parametrize(("difference", "preempts"), [(10, False), (11, True), (-50, False)])
def test_only_a_difference_above_the_threshold_preempts(difference: int, preempts: bool) -> None:
    bench = bench_of(max_running_requests=1)
    filled(bench, {"runs": 3}, answer=20)
    bench.add(request("comes", 8, 4, priority=3 + difference))
    bench.step()
    assert ("comes" in bench.answers) is preempts


def test_rows_whose_pages_a_transfer_uses_are_not_preempted() -> None:
    bench = bench_of(max_running_requests=2)
    filled(bench, {"read": 0, "runs": 5}, answer=20)
    bench.scheduler.begin_transfer("read", "transfer")
    bench.add(request("urgent", 8, 4, priority=50))
    bench.step()
    assert running_of(bench) == {"read", "urgent"}
    bench.scheduler.end_transfer("transfer")
    bench.run()


def test_the_threshold_is_a_setting() -> None:
    bench = bench_of(max_running_requests=1, priority_threshold=0)
    filled(bench, {"runs": 0}, answer=20)
    bench.add(request("comes", 8, 4, priority=1))
    bench.step()
    assert "comes" in bench.answers


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "adaptive"])
def test_no_other_policy_preempts(policy: str) -> None:
    bench = bench_of(max_running_requests=1, policy=policy)
    filled(bench, {"runs": 0}, answer=20)
    bench.add(request("comes", 8, 4, priority=100))
    bench.step()
    assert "comes" not in bench.answers


def test_as_many_go_as_the_urgent_one_needs_pages_for() -> None:
    bench = bench_of(max_running_requests=8)
    filled(bench, {"a": 0, "b": 0, "c": 0}, answer=20)
    bench.add(request("urgent", 60, 10, priority=50, ignore_eos=True))
    bench.step()
    # 60 + 10 tokens and a page fit 128 beside one that may need 32, and not beside two.
    assert running_of(bench) == {"a"}
    assert bench.scheduler.status().retractions == 2
    bench.run()
    assert bench.answers["urgent"] == answer_to(range(60), 10)


def test_all_or_nothing() -> None:
    """Sending the only one back that may go would not make room: it stays."""
    bench = bench_of(max_running_requests=8)
    filled(bench, {"equal": 50, "also": 50, "less": 0}, answer=20)
    before = bench.scheduler.status().retractions
    bench.add(request("urgent", 100, 20, priority=50, ignore_eos=True))
    bench.step()
    assert bench.scheduler.status().retractions == before
    assert running_of(bench) == {"equal", "also", "less"}


def test_room_that_is_there_is_used_first() -> None:
    bench = bench_of(max_running_requests=4)
    filled(bench, {"a": 0}, answer=20)
    bench.add(request("urgent", 8, 4, priority=50))
    bench.step()
    assert bench.scheduler.status().retractions == 0
    assert "urgent" in bench.answers


def test_nobody_is_sent_back_for_others_twice() -> None:
    bench = bench_of(max_running_requests=1)
    filled(bench, {"low": 0}, answer=30)
    for name in ("first", "second"):
        bench.add(request(name, 8, 4, priority=50))
        bench.step_until(lambda _, name=name: name in bench.terminals or "low" in running_of(bench))
        bench.step_until(lambda _: "low" in running_of(bench) or "low" in bench.terminals)
    assert bench.scheduler.status().retractions == 1
    bench.add(request("third", 8, 4, priority=50))
    bench.step()
    assert "low" in running_of(bench)
    bench.run()
    assert bench.answers["low"] == answer_to(range(12), 30)


def test_a_preemption_says_nothing_about_how_long_answers_are() -> None:
    """The share of max_tokens that is reserved rises when pages are missing, not for urgency."""
    bench = bench_of(max_running_requests=1)
    filled(bench, {"low": 0}, answer=20)
    before = bench.scheduler.status().new_token_ratio
    bench.add(request("urgent", 8, 4, priority=50))
    bench.step()
    assert bench.scheduler.status().retractions == 1
    assert bench.scheduler.status().new_token_ratio <= before


@given(
    arrivals=st.lists(
        st.tuples(st.integers(1, 40), st.integers(1, 20), st.sampled_from([-20, 0, 5, 20, 60])),
        min_size=1,
        max_size=14,
    ),
    rows=st.integers(1, 4),
    cache=st.booleans(),
    steps=st.integers(0, 3),
)
@examples(40)
def test_whoever_preempts_whom_every_answer_is_right(
    arrivals: list[tuple[int, int, int]], rows: int, cache: bool, steps: int
) -> None:
    bench = bench_of(max_running_requests=rows, prefix_cache=cache, pool_tokens=64)
    for index, (prompt, answer, priority) in enumerate(arrivals):
        bench.add(request(f"r{index}", prompt, answer, priority=priority))
        for _ in range(steps):
            bench.step()
    bench.run()
    for index, (prompt, answer, _) in enumerate(arrivals):
        assert bench.answers[f"r{index}"] == answer_to(range(prompt), min(answer, 64 - prompt))


@pytest.mark.parametrize(
    "shares", [False, True], ids=["too long beside it", "waits for its prefix"]
)
def test_nobody_goes_for_one_that_would_not_join_the_step(shares: bool) -> None:
    """A prompt is being cut. The urgent one is too long to be computed beside it, or waits for what
    it computes; when that is over, it takes the place of others at once."""
    bench = bench_of(pool_tokens=1024, page_size=16, chunk_size=64, prefix_cache=True)
    for index in range(4):
        bench.add(request(f"low{index}", [index] * 40, 120, ignore_eos=True))
    bench.step_until(lambda _: len(running_of(bench)) == 4)
    start = [i % 50 for i in range(200)]
    bench.add(request("cut", [*start, *[7] * 60], 4, priority=95, ignore_eos=True))
    bench.step()
    prompt = [*start[:80], *[9] * 5] if shares else [49 - i % 50 for i in range(250)]
    bench.add(request("urgent", prompt, 300, priority=100, ignore_eos=True))
    before = bench.scheduler.status().retractions
    while (cut := bench.scheduler.status().prefilling) and cut.request_id == "cut":
        joined = "urgent" in running_of(bench)
        assert joined or bench.scheduler.status().retractions == before
        bench.step()
    for _ in range(8):
        bench.step()
    assert "urgent" in bench.answers
    bench.run()
    assert bench.answers["urgent"] == answer_to(prompt, 300)
