"""Pages that a step or a transfer may touch belong to nobody else until it is over."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler.kv_allocator import PageAllocator, PageLeases, pages_for

from tests.examples import examples
from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to


@given(
    fences=st.lists(st.sets(st.integers(0, 5), min_size=1), max_size=12),
    order=st.permutations(range(6)),
)
def test_a_lease_ends_with_the_last_of_its_fences_in_any_order(
    fences: list[set[int]], order: list[int]
) -> None:
    leases: PageLeases[int] = PageLeases()
    for fence in order:
        leases.open(fence)
    for held, needed in enumerate(fences):
        leases.hold(held, needed)
    assert sorted(leases) == list(range(len(fences)))
    passed: set[int] = set()
    for fence in order:
        passed.add(fence)
        ended = leases.passed(fence)
        assert ended == [
            h for h, needed in enumerate(fences) if needed <= passed and fence in needed
        ]
    assert list(leases) == []


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "step", "step", "step", "begin", "end", "abort"]),
        st.integers(0, 1000),
    ),
    max_size=80,
)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
@given(operations=OPERATIONS)
@examples(60)
def test_what_a_transfer_reads_stays_until_it_is_over(
    overlap: bool, prefix_cache: bool, operations: list[tuple[str, int]]
) -> None:
    """The runner clears pages that are freed, and writes into those of others."""
    bench = Bench(
        settings_of(96, prefix_cache=prefix_cache, conservativeness=0.05), overlap=overlap
    )
    read: dict[str, dict[int, int]] = {}
    ended = 0
    for number, (operation, choice) in enumerate(operations):
        holders = [r for r in bench.scheduler._table.requests if r.row is not None]
        if operation == "add":
            bench.add(request(f"r{number}", [choice % 2] * (choice % 30 + 1), choice % 29 + 1))
        elif operation == "step":
            bench.step()
        elif operation == "begin" and holders:
            chosen = holders[choice % len(holders)]
            bench.scheduler.begin_transfer(chosen.request_id, f"transfer {number}")
            complete = chosen.page_ids[: chosen.landed_tokens // 4]
            read[f"transfer {number}"] = _slots_of(bench, complete)
        elif operation == "end" and read:
            name = sorted(read)[choice % len(read)]
            slots = read.pop(name)
            assert _slots_of(bench, [slot // 4 for slot in slots]) == slots
            bench.scheduler.end_transfer(name)
            ended += 1
        elif operation == "abort" and holders:
            bench.scheduler.abort(holders[choice % len(holders)].request_id)
        bench.scheduler.check_integrity()
    for name, slots in read.items():
        assert _slots_of(bench, [slot // 4 for slot in slots]) == slots
        bench.scheduler.end_transfer(name)
    bench.run()
    status = bench.scheduler.status()
    assert status.pages_free + status.pages_evictable == status.pages_total


def _slots_of(bench: Bench, pages: list[int]) -> dict[int, int]:
    """What the runner's memory holds in these pages."""
    places = [place for page in pages for place in range(page * 4, page * 4 + 4)]
    return {place: token for place in places if (token := bench.runner._slots[place]) is not None}


def test_pages_are_handed_out_in_order_and_never_twice() -> None:
    allocator = PageAllocator(4, [2, 0, 3, 1])
    assert allocator.allocate(3) == [2, 0, 3]
    allocator.free([0])
    assert allocator.allocate(2) == [0, 1]
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free([0, 0])


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_pages_for(tokens: int, pages: int) -> None:
    assert pages_for(tokens, 16) == pages


@pytest.mark.parametrize("overlap", [False, True])
def test_a_long_prompt_takes_the_pages_of_a_chunk_and_keeps_the_rest_for_itself(
    overlap: bool,
) -> None:
    """Sixteen pages; a prompt of twelve in chunks of four beside one that wants five."""
    bench = Bench(settings_of(64, mixed=False), overlap=overlap)
    bench.add(request("a", 48, 3), request("b", 18, 3))
    batches = bench.run()
    pages = [sum(len(p.page_ids) for p in batch.appended_pages if p.row == 0) for batch in batches]
    assert pages[:3] == [4, 4, 4]
    assert bench.answers == {"a": answer_to(range(48), 3), "b": answer_to(range(18), 3)}
    starts = [step for step, batch in enumerate(batches) for _ in batch.added_rows]
    assert starts[1] > 2, "the second waits until the first has given pages back"


def test_pages_that_are_kept_for_a_prompt_count_as_used_and_are_given_back_with_it() -> None:
    bench = Bench(settings_of(64))
    bench.add(request("a", 48, 3))
    bench.step()
    assert bench.scheduler.status().pages_available == 4
    bench.scheduler.abort("a")
    bench.run()
    assert bench.scheduler.status().pages_available == 16


@pytest.mark.parametrize("pages", [21, 23, 25])
def test_a_scored_prompt_computed_twice_takes_no_page_that_is_kept_for_another(pages: int) -> None:
    """It computes what is cached, and its duplicates come back after the step."""
    settings = settings_of(pages * 4, context=pages * 4, prefix_cache=True)
    bench = Bench(settings, overlap=True)
    cached = list(range(100, 132))
    bench.add(request("cached", cached, 1))
    bench.run()
    bench.add(request("long", [5] * 52, 1))
    bench.step()
    bench.add(request("scored", cached, 1, prompt_logprobs=0))
    bench.run()
    assert bench.answers["long"] == answer_to([5] * 52, 1)
    assert bench.scheduler.status().retractions == 0


def test_pages_of_an_aborted_request_are_free_once_its_transfer_is_over() -> None:
    bench = Bench(settings_of(96, prefix_cache=False))
    bench.add(request("read", 20, 8))
    bench.step()
    bench.scheduler.begin_transfer("read", "transfer")
    bench.scheduler.abort("read")
    bench.step()
    status = bench.scheduler.status()
    assert status.pages_free < status.pages_total
    bench.scheduler.end_transfer("transfer")
    status = bench.scheduler.status()
    assert status.pages_free == status.pages_total
