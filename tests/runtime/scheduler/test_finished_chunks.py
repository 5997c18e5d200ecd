"""What `process` says of the prompts' chunks, where somebody wants to know."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.scheduler.batch import NO_TOKEN, FinishedChunk, SampledTokens
from sluice_runtime.scheduler.kv_allocator import pages_for
from sluice_runtime.scheduler.prefix_node import key_of

from tests.examples import examples
from tests.runtime.scheduler.building import Bench, request, settings_of

PAGE_SIZE = 4


def test_nothing_is_made_for_nobody() -> None:
    bench = Bench(settings_of())
    bench.add(request("a", 40, 3))
    bench.run()
    assert bench.chunks == []


def test_each_chunk_comes_with_its_pages_in_the_step_that_computed_it() -> None:
    bench = Bench(settings_of(report_chunks=True))
    bench.add(request("a", 38, 3))
    bench.step()
    (first,) = bench.chunks
    pages = bench.runner.rows[first.row].pages
    tokens = tuple(request("a", 38, 3).token_ids)
    assert first == FinishedChunk("a", first.row, 0, 16, tuple(pages[:4]), key_of(tokens[:16]))
    bench.step()
    bench.step()
    assert [(chunk.start, chunk.end) for chunk in bench.chunks] == [(0, 16), (16, 32), (32, 38)]
    assert [page for chunk in bench.chunks for page in chunk.page_ids] == pages[:10]
    assert b"".join(chunk.tokens for chunk in bench.chunks) == key_of(tokens)
    bench.run()
    assert len(bench.chunks) == 3, "tokens of the answer are no chunk of the prompt"


def test_a_cached_prefix_is_part_of_the_first_chunk() -> None:
    bench = Bench(settings_of(report_chunks=True, prefix_cache=True))
    bench.add(request("a", 32, 1))
    bench.run()
    before = len(bench.chunks)
    bench.add(request("b", 38, 1))
    bench.run()
    (chunk,) = bench.chunks[before:]
    assert bench.cached["b"] == 32
    assert (chunk.request_id, chunk.start, chunk.end) == ("b", 0, 38)
    cached = [page for one in bench.chunks[:before] for page in one.page_ids]
    assert chunk.page_ids[:8] == tuple(cached)
    assert chunk.tokens == key_of(range(38))


def test_the_last_chunk_of_a_request_that_ends_with_it_is_told_too() -> None:
    bench = Bench(settings_of(report_chunks=True))
    bench.add(request("a", 10, 1))
    bench.run()
    assert [(chunk.start, chunk.end, len(chunk.page_ids)) for chunk in bench.chunks] == [(0, 10, 3)]
    assert "a" in bench.terminals


def test_what_was_aborted_or_is_not_finite_finishes_no_chunk() -> None:
    bench = Bench(settings_of(report_chunks=True))
    bench.add(request("aborted", 5, 3), request("broken", 5, 3))
    batch = bench.scheduler.next_batch(0.0)
    assert batch is not None
    bench.scheduler.abort("aborted")
    outcome = bench.scheduler.process(batch, SampledTokens(batch.step, (7, NO_TOKEN)), 0.0)
    assert outcome.finished_chunks == ()


@pytest.mark.parametrize("overlap", [False, True])
@given(
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=8),
    prefix_cache=st.booleans(),
)
@examples(60)
def test_chunks_cover_each_prompt_once_from_its_beginning(
    overlap: bool, lengths: list[tuple[int, int]], prefix_cache: bool
) -> None:
    """A retracted request begins again, and what it generated belongs to its prompt then."""
    bench = Bench(
        settings_of(64, report_chunks=True, prefix_cache=prefix_cache, conservativeness=0.05),
        overlap=overlap,
    )
    for number, (length, branch) in enumerate(lengths):
        prompt = [branch] * min(length, 9) + list(range(length - min(length, 9)))
        bench.add(request(f"r{number}", prompt, 12))
    bench.run()
    covered: dict[str, int] = {}
    for chunk in bench.chunks:
        start = 0 if chunk.start == 0 else covered[chunk.request_id]
        assert chunk.start == start
        assert chunk.end % PAGE_SIZE == 0 or chunk.end >= lengths[int(chunk.request_id[1:])][0]
        first = chunk.start // PAGE_SIZE
        assert len(chunk.page_ids) == pages_for(chunk.end, PAGE_SIZE) - first
        covered[chunk.request_id] = chunk.end
    for number, (length, _) in enumerate(lengths):
        assert covered[f"r{number}"] >= length
