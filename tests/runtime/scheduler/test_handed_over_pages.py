"""Random operations on a scheduler whose pages others read and write: none is given to two.

The runner clears pages that are freed and notices one that is read too early or written twice.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler.batch import Preallocated
from sluice_runtime.wire.messages import Generate

from tests.examples import examples
from tests.runtime.scheduler.building import Bench, request, settings_of
from tests.runtime.scheduler.fake_runner import answer_to
from tests.runtime.scheduler.test_resume import arrive, prompt_of

NAMES = ["add", "remote", "remote", "give", "arrive", "arrive", "step", "step", "step"]
NAMES += ["abort", "room", "room", "read", "end", "flush"]
OPERATIONS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 1000)), max_size=80)
PAGE_SIZE = 4


@dataclass
class Handover:
    """A scheduler, what is being read of it, and what is coming for it."""

    bench: Bench
    asked: dict[str, Generate] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    coming: dict[str, tuple[Generate, Preallocated]] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)
    """Request by the fence of what is written into its pages."""
    rooms: dict[str, dict[int, int | None]] = field(default_factory=dict)
    """By fence: what the pages held when they were announced."""

    def do(self, number: int, operation: str, choice: int) -> None:
        name = f"r{number}"
        message = request(name, prompt_of(choice, choice % 30 + 1), choice % 9 + 1)
        draw, scheduler = random.Random(choice), self.bench.scheduler
        match operation:
            case "add":
                self.asked[name] = message
                scheduler.add(message)
            case "remote":
                self.asked[name] = message
                scheduler.add_remote(message)
            case "room":
                self.asked[name] = request(name, message.prompt_ids, 1)
                self.rooms[name] = {}
                scheduler.add(self.asked[name], transfer=name)
            case "give":
                self.give()
            case "arrive" if self.coming:
                self.arrive(draw.choice(sorted(self.coming)))
            case "read" if self.coming:
                fence = f"read {number}"
                self.reads[fence] = draw.choice(sorted(self.coming))
                scheduler.begin_transfer(self.reads[fence], fence)
            case "end" if self.reads or self.rooms:
                self.end(draw.choice(sorted({**self.reads, **self.rooms})))
            case "step":
                self.step()
            case "abort" if self.asked:
                self.abort(draw.choice(sorted(self.asked)))
            case "flush":
                scheduler.flush_cache()

    def give(self) -> None:
        for room in self.bench.scheduler.next_preallocations(0.0):
            self.coming[room.request_id] = (self.asked[room.request_id], room)

    def arrive(self, name: str) -> None:
        """Nobody resumes a request into whose pages somebody writes."""
        if name not in self.reads.values():
            arrive(self.bench, *self.coming.pop(name))

    def abort(self, name: str) -> None:
        self.bench.scheduler.abort(name)
        self.coming.pop(name, None)
        self.aborted.add(name)

    def step(self) -> None:
        told = len(self.bench.chunks)
        self.bench.step()
        for chunk in self.bench.chunks[told:]:
            if chunk.request_id in self.rooms:
                slots = self.slots(chunk.page_ids)
                assert None not in list(slots.values())[: chunk.end - chunk.start]
                self.rooms[chunk.request_id] |= slots

    def end(self, fence: str) -> None:
        announced = self.rooms.pop(fence, {})
        pages = [slot // PAGE_SIZE for slot in announced]
        assert self.slots(pages) == announced, "a page that is read was freed or written"
        self.reads.pop(fence, None)
        self.bench.scheduler.end_transfer(fence)

    def slots(self, pages: list[int] | tuple[int, ...]) -> dict[int, int | None]:
        places = [page * PAGE_SIZE + offset for page in pages for offset in range(PAGE_SIZE)]
        return {place: self.bench.runner._slots[place] for place in places}

    def finish(self) -> None:
        """Everything that is read or comes ends; then so does every request."""
        for fence in [*self.reads]:
            self.end(fence)
        for _ in range(1000):
            for name in [*self.coming]:
                self.arrive(name)
            self.step()
            for fence in [*self.rooms]:
                if fence in self.bench.terminals:
                    self.end(fence)
            self.give()
            if not self.bench.scheduler._table and not self.bench.in_flight and not self.rooms:
                break
        self.bench.run()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("prefix_cache", [False, True])
@given(operations=OPERATIONS)
@examples(80)
def test_no_page_is_given_while_it_is_read_or_written_and_all_answer_as_if_alone(
    overlap: bool, prefix_cache: bool, operations: list[tuple[str, int]]
) -> None:
    """With retractions, which compute a resumed request's prompt here."""
    bench = Bench(
        settings_of(96, prefix_cache=prefix_cache, conservativeness=0.05, report_chunks=True),
        overlap=overlap,
    )
    handover = Handover(bench)
    for number, (operation, choice) in enumerate(operations):
        handover.do(number, operation, choice)
        bench.scheduler.check_integrity()
    handover.finish()
    for name, message in handover.asked.items():
        assert len(bench.terminals[name]) == 1, name
        if name not in handover.aborted:
            assert bench.answers[name] == answer_to(message.prompt_ids, message.max_tokens)
    status = bench.scheduler.status()
    assert status.pages_free + status.pages_evictable == status.pages_total
    assert len(bench.scheduler._kv._free_rows) == 16


def test_a_prompt_of_one_chunk_keeps_its_pages_after_its_end_until_its_transfer_is_over() -> None:
    bench = Bench(settings_of(64, report_chunks=True, prefix_cache=True))
    bench.scheduler.add(request("a", 18, 1), transfer=7)
    bench.run()
    (first, last) = bench.chunks
    pages = {*first.page_ids, *last.page_ids}
    assert bench.terminals["a"][0].finish_reason == "length"
    bench.add(request("b", list(range(100, 140)), 3))
    for _ in range(3):
        bench.step()
    held = {page for row in bench.runner.rows.values() for page in row.pages}
    assert len(held) == 10
    assert not held & pages
    bench.run()
    bench.add(request("c", list(range(100, 150)), 3))
    assert bench.step() is None, "only the pages of the transfer are left for it"
    bench.scheduler.end_transfer(7)
    bench.run()
    assert bench.terminals["c"][0].finish_reason == "length"


def test_what_was_refused_has_a_transfer_to_end_too() -> None:
    bench = Bench(settings_of(64))
    bench.scheduler.add(request("a", 100, 1), transfer=7)
    bench.run()
    assert bench.terminals["a"][0].finish_reason == "error"
    bench.scheduler.end_transfer(7)


def test_the_last_running_request_waits_for_pages_that_others_hold_and_will_give_back() -> None:
    bench = Bench(settings_of(1200))
    bench.add(request("a", 15, 900))
    bench.step()
    coming = request("b", [1] * 500, 1)
    bench.scheduler.add_remote(coming)
    (room,) = bench.scheduler.next_preallocations(0.0)
    bench.run()
    status = bench.scheduler.status()
    assert (status.retractions, status.queued_requests) == (1, 1)
    assert 512 < len(bench.answers["a"]) < 900
    bench.scheduler.add_remote(request("c", 4, 1))
    assert not bench.scheduler.next_preallocations(0.0), "whoever was retracted goes first"
    arrive(bench, coming, room)
    bench.run()
    assert bench.answers["a"] == answer_to(range(15), 900)
    assert bench.scheduler.status().retractions == 1
    assert len(bench.scheduler.next_preallocations(0.0)) == 1
