"""Each policy orders by what it says."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from dataclasses import replace

import pytest
from sluice_contract.config.engine import READS_PRIORITY, SchedulingPolicy
from sluice_contract.config.sizing import CACHE_POLICIES
from sluice_runtime.scheduler.policies import (
    ALIASES,
    POLICIES,
    PREEMPTING,
    PolicyContext,
    Turn,
)
from sluice_runtime.scheduler.policies.orders import MAX_LOOKED_UP
from sluice_runtime.scheduler.request import Request, request_from

from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to

IDLE = PolicyContext(now=0.0)


def waiting(
    name: str, prompt: int = 10, answer: int = 10, arrival: float = 0.0, **fields: object
) -> Request:
    message = request(name, prompt, answer, arrival_seconds=arrival, **fields)
    return request_from(message, answer)


def names(policy: str, requests: Sequence[Request], context: PolicyContext = IDLE) -> str:
    return "".join(r.request_id for r in POLICIES[policy](requests, context))


def test_every_policy_of_the_configuration_is_there_and_none_else() -> None:
    assert POLICIES.keys() | ALIASES.keys() == set(typing.get_args(SchedulingPolicy))
    assert set(ALIASES.values()) <= set(POLICIES)
    assert set(POLICIES) >= PREEMPTING


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "slack"])
def test_those_that_read_priorities_and_those_that_need_a_cache_are_listed(name: str) -> None:
    """What the operator says of a policy, and refuses, follows from these lists."""
    equal, urgent = [waiting("a"), waiting("b")], [waiting("a"), waiting("b", priority=5)]
    loads = [replace(IDLE, now=1.0, load=load) for load in (0.1, 0.5, 0.9)]
    reads_priority = any(names(name, urgent, load) != names(name, equal, load) for load in loads)
    assert reads_priority == (name in READS_PRIORITY)
    alike = [waiting("a"), waiting("b"), waiting("c")]
    cached = replace(
        IDLE,
        matched_tokens=lambda r: 8 * (r.request_id != "a"),
        matched_path=lambda r: (1,) * (r.request_id != "a"),
    )
    unlike = [waiting("a", 30, 5), waiting("b", 5, 60), waiting("c", 10, 10)]
    reads_cache = names(name, alike, cached) != names(name, alike)
    needs_cache = reads_cache and names(name, unlike) == "abc"
    if name not in ("hrrn", "adaptive"):  # these order by size and time, too
        assert needs_cache == (name in CACHE_POLICIES)


def test_by_size() -> None:
    a, b, c = waiting("a", 30, 5), waiting("b", 5, 60), waiting("c", 10, 10)
    assert names("fcfs", [a, b, c]) == "abc"
    assert names("lof", [a, b, c]) == "bca"
    assert names("sjf", [a, b, c]) == "bca"
    assert names(ALIASES["srtf"], [a, b, c], replace(IDLE, now=1.0)) == "cab"


def test_shortest_prefill_counts_what_the_cache_holds() -> None:
    a, b = waiting("a", 30), waiting("b", 20)
    cached = replace(IDLE, matched_tokens=lambda r: 28 if r is a else 0)
    assert names("sjf", [b, a], cached) == "ab"


def test_response_ratio_is_waiting_by_work() -> None:
    long_ago, short = waiting("a", 990, 10, arrival=0.0), waiting("b", 90, 10, arrival=8.0)
    assert names("hrrn", [long_ago, short], PolicyContext(now=9.0)) == "ba"
    assert names("hrrn", [long_ago, short], PolicyContext(now=8.1)) == "ab"


def test_priority_is_highest_first_and_then_by_arrival() -> None:
    requests = [waiting("a"), waiting("b", priority=5), waiting("c", priority=-5), waiting("d")]
    assert names("priority", requests) == "badc"


def test_random_depends_on_the_seed_alone() -> None:
    requests = [waiting(name) for name in "abcdefgh"]
    first = names("random", requests, replace(IDLE, seed=1))
    assert first == names("random", requests[::-1], replace(IDLE, seed=1))
    assert first != names("random", requests, replace(IDLE, seed=2)) != "abcdefgh"


def test_longest_match_goes_first() -> None:
    held = {"a": 0, "b": 0, "c": 64, "d": 96}
    context = replace(IDLE, matched_tokens=lambda r: held[r.request_id])
    requests = [waiting(name, 100) for name in "abcd"]
    assert names("lpm", requests, context) == "dcab"
    assert names("lpm", requests) == "abcd", "without a cache"


def test_longest_match_gives_way_to_arrival_in_a_long_queue() -> None:
    asked: list[Request] = []
    context = replace(IDLE, matched_tokens=lambda r: len(asked.append(r) or asked))  # type: ignore[func-returns-value]
    queue = [waiting(f"r{i}") for i in range(MAX_LOOKED_UP + 1)]
    assert list(POLICIES["lpm"](queue, context)) == queue
    assert not asked
    assert list(POLICIES["lpm"](queue[1:], context)) != queue[1:]


@pytest.mark.parametrize("name", ["sjf", "hrrn", "dfs-weight", "adaptive"])
def test_a_long_queue_is_not_looked_up_as_a_whole(name: str) -> None:
    asked: list[Request] = []

    def looked_up(request: Request) -> Sequence[int]:
        asked.append(request)
        return ()

    context = PolicyContext(
        now=1.0, load=0.9, matched_tokens=lambda r: len(looked_up(r)), matched_path=looked_up
    )
    queue = [waiting(f"r{i}") for i in range(4 * MAX_LOOKED_UP)]
    assert len(list(POLICIES[name](queue, context))) == len(queue)
    assert len(asked) <= MAX_LOOKED_UP


def test_depth_first_finishes_the_heaviest_branch() -> None:
    paths = {"a": (1, 2), "b": (3, 4), "c": (3, 5), "d": (3, 4, 6), "e": ()}
    context = replace(IDLE, matched_path=lambda r: paths[r.request_id])
    assert names("dfs-weight", [waiting(n) for n in "abcde"], context) == "dbcae"


def test_depth_first_lets_nobody_without_a_prefix_pass_those_who_have_one() -> None:
    """What they compute would take the place of what the others are about to use."""
    paths = {"a": (), "b": (1,), "c": (), "d": (1,)}
    context = replace(IDLE, matched_path=lambda r: paths[r.request_id])
    assert names("dfs-weight", [waiting(n) for n in "abcd"], context) == "bdac"


def test_round_robin_picks_ten_of_each_key_in_turn() -> None:
    flood = [waiting("A", routing_key="a") for _ in range(25)]
    few = [waiting("B", routing_key="b"), waiting("B", routing_key="b")]
    assert names("round-robin", [*flood, *few]) == "A" * 10 + "BB" + "A" * 15
    used = replace(IDLE, turn=Turn(("", "a"), 7))
    assert names("round-robin", [*flood, *few], used) == "AAABB" + "A" * 22
    over = replace(IDLE, turn=Turn(("", "a"), 10))
    assert names("round-robin", [*flood, *few], over)[:3] == "BBA"


@pytest.mark.parametrize(
    ("load", "cached", "expected"),
    [(0.2, False, "abc"), (0.5, False, "bca"), (0.9, False, "cba"), (0.9, True, "acb")],
)
def test_adaptive_follows_the_load(load: float, cached: bool, expected: str) -> None:
    requests = [waiting("a", 300), waiting("b", 200, priority=2), waiting("c", 100, priority=1)]
    matched = {"a": 200, "b": 0, "c": 96}
    context = PolicyContext(
        now=9.0, load=load, matched_tokens=(lambda r: matched[r.request_id]) if cached else None
    )
    assert names("adaptive", requests, context) == expected


@pytest.mark.parametrize(
    ("cached", "long", "short"), [(0, "c", "c"), (9, "c", "c"), (11, "b", "a")]
)
def test_adaptive_orders_by_prefix_where_a_tenth_is_cached_also_in_a_long_queue(
    cached: int, long: str, short: str
) -> None:
    """`a` and `b` are alike but for their paths, `c` is a short one."""
    queue = [waiting("b" if i == 7 else "a", 100) for i in range(MAX_LOOKED_UP)] + [waiting("c", 5)]
    context = PolicyContext(
        now=9.0,
        load=0.9,
        matched_tokens=lambda r: cached,
        matched_path=lambda r: (1,) if r.request_id == "b" else (),
    )
    assert names("adaptive", queue, context)[0] == long
    assert names("adaptive", queue[2:], context)[0] == short


def test_adaptive_uses_the_response_ratio_where_priorities_are_equal() -> None:
    requests = [waiting("a", 900), waiting("b", 20, arrival=1.0)]
    assert names("adaptive", requests, PolicyContext(now=3.0, load=0.5)) == "ba"


@pytest.mark.parametrize("name", POLICIES)
def test_answers_do_not_depend_on_the_policy(name: str) -> None:
    bench = Bench(settings_of(pool_tokens=128, policy=name, conservativeness=0.05))
    sizes = [(9, 40), (30, 30), (2, 50), (17, 40), (40, 5), (4, 60)]
    for index, (prompt, answer) in enumerate(sizes):
        one = request(f"r{index}", prompt, answer, priority=index % 3, routing_key=f"k{index % 2}")
        bench.add(one)
        bench.step()
    bench.run()
    for index, (prompt, answer) in enumerate(sizes):
        assert bench.answers[f"r{index}"] == answer_to(range(prompt), answer)
    assert bench.scheduler.status().retractions > 0
