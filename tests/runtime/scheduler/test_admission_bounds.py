"""What bounds admission: the share of a long prompt in its steps, and the slots of adapters."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler.admission import AdmitResult, PrefillAdder
from sluice_runtime.scheduler.admission_bounds import CLAIM_SECONDS, AdapterSlots, PrefixesInFlight
from sluice_runtime.scheduler.batch import Batch
from sluice_runtime.scheduler.prefix_cache import Match
from sluice_runtime.scheduler.request import Request, request_from

from tests.examples import examples
from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to
from tests.runtime.scheduler.test_admission import cached, headroom, plan, taken, waiting

PAGE = 16


@pytest.mark.parametrize(
    ("lead", "others", "own"),
    [
        (0, 64, 64),
        (32, 80, 48),
        (96, 112, 16),
        (5000, 112, 16),
    ],
)
def test_others_get_half_and_what_the_prompt_is_ahead_by(lead: int, others: int, own: int) -> None:
    long = waiting(1000, computed=160)
    long.lead_tokens = lead
    made = plan([waiting(others), waiting(16)], continuing=long, chunk_size=128)
    assert taken(made) == [(160, 160 + own, True), (0, others, False)]
    more = plan([waiting(others + 1)], continuing=long, chunk_size=128)
    assert taken(more) == [(160, 288, True)], "one token more does not fit whole"


def test_nobody_is_cut_beside_a_prompt_that_is_cut() -> None:
    long = waiting(1000, computed=160)
    made = plan([waiting(40), waiting(60)], continuing=long, chunk_size=128)
    assert taken(made) == [(160, 240, True), (0, 40, False)]


def test_the_last_chunk_is_not_shared() -> None:
    made = plan([waiting(20), waiting(90)], continuing=waiting(260, computed=160), chunk_size=128)
    assert taken(made) == [(160, 260, False), (0, 20, False)]


def test_who_is_too_long_for_any_share_is_passed_over() -> None:
    long = waiting(1000, computed=160)
    made = plan([waiting(113), waiting(500), waiting(30)], continuing=long, chunk_size=128)
    assert taken(made) == [(160, 256, True), (0, 30, False)]
    assert made.reason == AdmitResult.CONTINUE.value


def test_who_is_light_and_over_the_steps_prompt_tokens_is_passed_over() -> None:
    """Its tokens take a quarter of the chunk that others take, but count whole otherwise."""
    long = waiting(3000, computed=1600)
    long.lead_tokens = 1000
    light = {"chunk_size": 128, "beginning_weight": 0.25, "max_prefill_tokens": 256}
    made = plan([waiting(241), waiting(30)], continuing=long, **light)
    assert taken(made)[1:] == [(0, 30, False)]
    made = plan([waiting(240), waiting(30)], continuing=long, **light)
    assert taken(made)[1:] == [(0, 240, False)]


def test_who_needs_a_larger_share_is_waited_for() -> None:
    """It fits into the next step, when the prompt is ahead by this one."""
    bench = Bench(settings_of(pool_tokens=4096, page_size=PAGE, chunk_size=128))
    bench.add(request("long", prompt_of(2000), 1))
    bench.step()
    bench.add(request("a", prompt_of(112), 1), request("b", prompt_of(100), 1))
    bench.add(request("c", prompt_of(16), 1))
    steps = [computed(bench.step()) for _ in range(4)]
    # b is not passed by c, although c would have fitted beside a chunk of half the step.
    assert steps == [[16, 112], [128], [16, 100], [112, 16]]


def test_only_so_many_are_passed_over_in_a_step() -> None:
    long = waiting(1000, computed=160)
    longs = [waiting(500) for _ in range(33)]
    made = plan([*longs[:32], waiting(30)], continuing=long, chunk_size=128)
    assert len(made.items) == 2
    made = plan([*longs, waiting(30)], continuing=long, chunk_size=128)
    assert len(made.items) == 1
    assert made.reason == AdmitResult.TOO_LONG.value


def test_a_step_of_one_page_is_the_long_prompts() -> None:
    long = waiting(1000, computed=160)
    long.lead_tokens = 160
    made = plan([waiting(5)], continuing=long, chunk_size=128, decode_rows=200)
    assert taken(made) == [(160, 176, True)]


def test_a_share_takes_no_page_that_is_not_there() -> None:
    made = plan(
        [waiting(40)], continuing=waiting(1000, computed=160), chunk_size=128, available_pages=1
    )
    assert taken(made) == [(160, 288, True)]
    assert made.reason == AdmitResult.NO_TOKEN.value


def test_what_is_cached_needs_no_share() -> None:
    """100 tokens, of which 48 are cached: 52 fit beside half a step of 128."""
    adder = PrefillAdder(settings_of(page_size=PAGE, chunk_size=128), headroom(), 0.5)
    adder.make_way(waiting(1000, computed=160))
    assert adder.add(waiting(100), cached(3)) is AdmitResult.CONTINUE


def test_prompts_that_attend_to_less_take_less_of_the_step() -> None:
    """At the end of a long prompt a token takes four times as much as at the beginning of one."""
    long = waiting(3000, computed=1600)
    long.lead_tokens = 1000
    shared: dict[str, Any] = {"continuing": long, "chunk_size": 128, "beginning_weight": 0.25}
    assert taken(plan([waiting(200)], **shared)) == [(1600, 1664, True), (0, 200, False)]
    assert taken(plan([waiting(448)], **shared)) == [(1600, 1616, True), (0, 448, False)]
    made = plan([waiting(449)], **shared)
    assert taken(made) == [(1600, 1728, True)]
    assert made.reason == AdmitResult.TOO_LONG.value


@given(
    budget=st.integers(16, 600),
    lead=st.integers(0, 2000),
    weight=st.floats(0.02, 1.0),
    others=st.lists(st.integers(1, 700), max_size=12),
)
@examples(50)
def test_whatever_others_weigh_the_step_is_not_overrun_and_they_never_get_ahead(
    budget: int, lead: int, weight: float, others: list[int]
) -> None:
    long = waiting(5000, computed=3200)
    long.lead_tokens = lead
    made = plan(
        [waiting(tokens) for tokens in others],
        continuing=long,
        chunk_size=budget,
        beginning_weight=weight,
    )
    (start, end, cut), *rest = taken(made)
    assert cut
    assert end - start >= PAGE
    assert sum(tokens for _, tokens, _ in rest) <= lead + end - start
    assert end - start + sum(weight * tokens for _, tokens, _ in rest) <= budget


@pytest.mark.parametrize("policy", ["fcfs", "sjf", "priority"])
def test_the_share_follows_the_policy(policy: str) -> None:
    bench = Bench(settings_of(pool_tokens=4096, page_size=PAGE, chunk_size=64, policy=policy))
    bench.add(request("long", prompt_of(1000), 1))
    bench.step()
    bench.add(request("first", prompt_of(48), 1), request("short", prompt_of(20), 1))
    bench.add(request("urgent", prompt_of(30), 1, priority=5))
    bench.step_until(lambda _: len(bench.terminals) == 3)
    expected = {
        "fcfs": ["first", "short", "urgent"],
        "sjf": ["short", "urgent", "first"],
        "priority": ["urgent", "first", "short"],
    }
    assert list(bench.terminals) == expected[policy]


def test_who_waited_for_the_end_of_a_long_prompt_is_next() -> None:
    """Short prompts never stop coming; under fcfs they pass a second long one only while it could
    not have begun."""
    bench = Bench(settings_of(pool_tokens=8192, page_size=PAGE, chunk_size=64))
    bench.add(request("long", prompt_of(640), 1), request("second", prompt_of(640), 1))
    for number in range(200):
        bench.add(request(f"s{number}", prompt_of(30), 1))
        bench.step()
        if "long" in bench.terminals:
            break
    passed = [name for name in bench.terminals if name.startswith("s")]
    assert len(passed) > 5
    bench.step()
    cut = bench.scheduler.status().prefilling
    assert cut
    assert cut.request_id == "second"


def prompt_of(tokens: int) -> list[int]:
    return [i % 50 for i in range(tokens)]


def computed(batch: Batch | None) -> list[int]:
    assert batch is not None
    return [len(row.token_ids) for row in batch.extend_rows]


def beside_others(bench: Bench, prompt: int, arrivals: list[int]) -> list[tuple[int, int]]:
    """Of each step with prompts until all of the long one is computed: its tokens and those of
    others. Before each but the first another prompt arrives."""
    bench.add(request("long", prompt_of(prompt), 1))
    steps: list[tuple[int, int]] = []
    for _ in range(10_000):
        batch = bench.launch()
        assert batch
        while len(bench.in_flight) > bench.overlap:
            bench.land()
        if not batch.extend_rows:
            continue  # answers had their turn
        own = batch.extend_rows[0]
        assert own.row == 0, "the long prompt stands still"
        if own.samples:
            return [*steps, (len(own.token_ids), batch.extend_tokens - len(own.token_ids))]
        if (number := len(steps)) < len(arrivals):
            bench.add(request(f"s{number}", prompt_of(arrivals[number]), 2))
        steps.append((len(own.token_ids), batch.extend_tokens - len(own.token_ids)))
    raise AssertionError("it starves")


@given(
    prompt=st.integers(145, 1500),
    arrivals=st.lists(st.integers(1, 200), max_size=150),
    chunk=st.integers(1, 9),
    extra=st.integers(0, 15),
    overlap=st.booleans(),
    policy=st.sampled_from(["fcfs", "sjf", "hrrn", "round-robin", "random"]),
)
@examples(60)
def test_a_long_prompt_never_starves_and_takes_twice_the_steps_at_most(
    prompt: int, arrivals: list[int], chunk: int, extra: int, overlap: bool, policy: str
) -> None:
    how = settings_of(
        pool_tokens=1 << 15,
        page_size=PAGE,
        chunk_size=chunk * PAGE + extra,
        mixed=False,
        max_running_requests=200,
        max_queued_requests=200,
        policy=policy,
    )
    bench = Bench(how, overlap=overlap)
    steps = beside_others(bench, prompt, arrivals)
    had = given_away = 0
    for own, others in steps[:-1]:
        had, given_away = had + own, given_away + others
        assert own >= PAGE
        assert given_away <= had
    assert len(steps) <= 2 * len(beside_others(Bench(how), prompt, []))
    bench.run()
    assert bench.answers["long"] == answer_to(prompt_of(prompt), 1)
    assert len(bench.terminals) == 1 + min(len(arrivals), len(steps) - 1)


STEP_SECONDS = 0.1
LONGEST_STEPS = 20
"""Of an answer."""


def of_adapter(name: str, adapter: str, arrival_seconds: float = 0.0) -> Request:
    message = request(name, 4, 8, adapter=adapter, arrival_seconds=arrival_seconds)
    return request_from(message, 8)


def admitted(slots: AdapterSlots, requests: list[Request]) -> list[str]:
    """Ids of those that join a step, in their order."""
    joined = []
    for candidate in requests:
        if slots.admits(candidate):
            slots.add(candidate)
            joined.append(candidate.request_id)
    return joined


def test_others_go_on_where_an_adapter_has_no_room() -> None:
    running = [of_adapter("0", "a")]
    queue = [of_adapter("1", "b"), of_adapter("2", "c"), of_adapter("3", ""), of_adapter("4", "b")]
    assert admitted(AdapterSlots(2, running, 0.0), queue) == ["1", "3", "4"]


def test_who_waits_too_long_makes_the_smallest_adapter_yield() -> None:
    running = [of_adapter("0", "a"), of_adapter("1", "a"), of_adapter("2", "b")]
    queue = [of_adapter("3", "c"), *(of_adapter(f"{name}-more", name) for name in ("a", "b", ""))]
    before = AdapterSlots(2, running, CLAIM_SECONDS)
    assert admitted(before, queue) == ["a-more", "b-more", "-more"]
    late = AdapterSlots(2, running, CLAIM_SECONDS + 1)
    assert admitted(late, queue) == ["a-more", "-more"]


def test_each_claim_has_one_adapter_yield() -> None:
    running = [of_adapter("0", "a"), of_adapter("1", "b"), of_adapter("2", "d")]
    queue = [of_adapter("3", "c"), of_adapter("4", "c"), *(of_adapter(f"{n}+", n) for n in "abd")]
    assert admitted(AdapterSlots(3, running, CLAIM_SECONDS + 1), queue) == ["b+", "d+"]


@given(
    seed=st.integers(0, 1000),
    most=st.integers(1, 4),
    adapters=st.integers(2, 9),
    arrivals=st.integers(1, 4),
)
@examples(60)
def test_no_adapter_starves(seed: int, most: int, adapters: int, arrivals: int) -> None:
    assert longest_wait(seed, most, adapters, arrivals) is not None


def test_without_claims_one_would() -> None:
    """The property above can fail."""
    never = 1e9
    assert longest_wait(3, 1, 4, 4, claim_seconds=never) is None


def longest_wait(
    seed: int, most: int, adapters: int, arrivals: int, claim_seconds: float = CLAIM_SECONDS
) -> int | None:
    """Steps that a request of a rare adapter waits while some of common ones arrive in each step;
    None: it waits too long. There is room for every row, so that adapters alone are short."""
    draw, running, queue = random.Random(seed), dict[Request, int](), list[Request]()
    # Each adapter before it in the order of claims may have to end once.
    bound = CLAIM_SECONDS / STEP_SECONDS + (adapters + 1) * LONGEST_STEPS * 2 + 2
    for step in range(int(bound)):
        now = step * STEP_SECONDS + CLAIM_SECONDS - claim_seconds
        if step == 1:
            queue.append(of_adapter("rare", "rare", step * STEP_SECONDS))
        running = {row: left - 1 for row, left in running.items() if left > 1}
        queue += [
            of_adapter(f"{step}-{n}", f"a{draw.randrange(adapters)}", step * STEP_SECONDS)
            for n in range(arrivals)
        ]
        slots = AdapterSlots(most, running, now)
        joined = set(admitted(slots, queue))
        if "rare" in joined:
            return step
        for starting in [entry for entry in queue if entry.request_id in joined]:
            running[starting] = draw.randint(1, LONGEST_STEPS)
            queue.remove(starting)
        assert len({row.adapter for row in running}) <= most
    return None


def test_a_prefix_in_flight_is_looked_up_once_whatever_others_have_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[int] = []
    part = PrefixesInFlight._part

    def counted(prefixes: PrefixesInFlight, request: Request, cached_pages: int) -> Any:
        parts.append(cached_pages)
        return part(prefixes, request, cached_pages)

    monkeypatch.setattr(PrefixesInFlight, "_part", counted)
    prefixes = PrefixesInFlight(settings_of(page_size=4, prefix_cache=True), [])
    for pages in range(50):
        match = Match("", (), pages, 0, 0)
        first, second = waiting(400), waiting(400)
        assert not prefixes.covers(first, match), "what others have cached is not the same"
        prefixes.add(first, pages)
        assert prefixes.covers(second, match)
    assert len(parts) == 3 * 50
