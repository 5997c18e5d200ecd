"""Requests that leave for another engine: those that have not begun, and nothing of the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler.hand_back import HANDED_BACK

from tests.examples import examples
from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to


def full_bench(waiting: int, **changed: int) -> Bench:
    """One request runs on the only row, and others wait behind it."""
    bench = Bench(settings_of(**({"max_running_requests": 1} | changed)))
    for name in ("runs", *(f"waits-{number}" for number in range(waiting))):
        bench.add(request(name, 8, 4))
    bench.step()
    bench.now += 1.0
    return bench


def hand_back(bench: Bench, *groups: tuple[str, ...], most: int = 64) -> int:
    return bench.scheduler.hand_back(groups, most, bench.now)


def test_what_waits_leaves_with_an_error_of_its_own_and_the_others_are_answered() -> None:
    bench = full_bench(3)
    assert hand_back(bench, ("waits-0",), ("waits-2",)) == 2
    bench.run()
    for name in ("waits-0", "waits-2"):
        (end,) = bench.terminals[name]
        assert (end.finish_reason, end.refusal, end.error) == ("error", "handed_back", HANDED_BACK)
    for name in ("runs", "waits-1"):
        assert bench.answers[name] == answer_to(range(8), 4)


def test_what_has_begun_or_ended_or_never_came_stays() -> None:
    bench = full_bench(1)
    assert hand_back(bench, ("runs",), ("unknown",), ("waits-0", "runs")) == 0
    bench.run()
    assert hand_back(bench, ("waits-0",)) == 0
    assert bench.answers["waits-0"] == answer_to(range(8), 4)


def test_a_request_that_is_named_twice_ends_once() -> None:
    bench = full_bench(2)
    assert hand_back(bench, ("waits-0",), ("waits-0", "waits-1")) == 2
    bench.run()
    assert [len(bench.terminals[name]) for name in ("waits-0", "waits-1")] == [1, 1]


def test_no_more_than_were_asked_for_leave_and_in_the_order_that_was_asked_for() -> None:
    bench = full_bench(4)
    assert hand_back(bench, ("waits-2",), ("waits-0",), ("waits-1",), most=2) == 2
    bench.run()
    assert {name for name, ends in bench.terminals.items() if ends[-1].refusal} == {
        "waits-2",
        "waits-0",
    }


def test_a_request_whose_prompt_is_cached_stays_while_it_waits_for_less() -> None:
    """A neighbour of which nothing is cached leaves."""
    settings = settings_of(max_running_requests=1, prefix_cache=True, pool_tokens=512)
    bench = Bench(settings)
    bench.add(request("before", 120, 1))
    bench.run()
    bench.add(request("runs", range(200, 208), 4))
    bench.add(request("cached", 121, 4))
    bench.add(request("new", range(130, 250), 4))
    bench.step()
    bench.scheduler._pacing.token_seconds = lambda: 0.01  # type: ignore[method-assign]
    for waiting in bench.scheduler._table.waiting:
        waiting.waiting_since_seconds = bench.now - 0.5
    assert hand_back(bench, ("cached",), ("new",)) == 1
    bench.run()
    assert bench.terminals["new"][-1].refusal == "handed_back"
    assert len(bench.answers["cached"]) == 4


def test_a_prompt_that_was_counted_elsewhere_is_not_counted_again() -> None:
    bench = Bench(settings_of())
    bench.add(request("first", 8, 1))
    bench.add(request("moved", 8, 1, moved=1, prompt_counted=True))
    assert bench.scheduler.status().received_prompt_tokens == 8


turns = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 255), st.integers(0, 2)), max_size=12)


@given(turns)
@examples(60)
def test_every_request_ends_once_however_calls_fall_between_steps(
    turns: list[tuple[int, int, int]],
) -> None:
    """Each turn: the tokens of a prompt that comes, which requests are asked for, and how many."""
    bench = Bench(settings_of(max_running_requests=2, pool_tokens=64))
    names: list[str] = []
    for prompt_tokens, mask, most in turns:
        if prompt_tokens:
            names.append(f"r{len(names)}")
            bench.add(request(names[-1], prompt_tokens, 3))
        asked = [(name,) for number, name in enumerate(names) if mask >> number & 1]
        hand_back(bench, *asked, most=most)
        bench.now += 1.0
        bench.step()
        bench.scheduler.check_integrity()
    bench.run()
    for name in names:
        (end,) = bench.terminals[name]
        assert end.refusal == "handed_back" or len(bench.answers[name]) == 3
        assert not (end.refusal and bench.answers.get(name)), "a part of it was told"
