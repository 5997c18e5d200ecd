"""Long inputs at full size, which no machine of this project could hold for real."""

from __future__ import annotations

import pytest

from tests.simulator.simulating import replay, requests, settings


@pytest.mark.parametrize(
    ("prompt_tokens", "chunk_size", "chunks"), [(150_000, 2_048, 74), (50_000, 4_096, 13)]
)
def test_a_long_prompt_is_computed_in_as_many_chunks_as_it_must(
    prompt_tokens: int, chunk_size: int, chunks: int
) -> None:
    status = replay(requests((0.0, prompt_tokens, 1)), settings(chunk_size=chunk_size)).status
    assert status.steps["EXTEND"] == chunks
    assert status.chunk_cuts == chunks - 1


def test_a_long_prompt_holds_no_stream_up_and_cuts_no_short_prompt() -> None:
    """Streams of 20 requests, each step's gap; the short prompts came before the long one."""
    streams = [(0.1 * n, 500, 200) for n in range(20)]
    trace = requests(*streams, (2.0, 150_000, 1))
    whole = replay(trace, settings(chunk_size=None)).record
    chunked = replay(trace, settings(chunk_size=2_048))
    assert max(whole.gaps.values) > 1.5
    assert max(chunked.record.gaps.values) <= 0.01 + 2_048 * 1e-5 + 1e-9
    # Decode rows share the chunks, which become a few more; nothing else was ever cut.
    assert 74 <= chunked.status.chunk_cuts + 1 <= 76


def test_256_running_beside_a_chunk_of_256_starve_neither() -> None:
    streams = [(0.0, 16, 800)] * 256
    how = settings(chunk_size=256, max_running_requests=300)
    replayed = replay(requests(*streams, (5.0, 4_096, 5)), how)
    assert all(line.tokens > 5 for line in replayed.record.timelines[:-1])
    long = replayed.record.timelines[-1]
    assert long.started_seconds is not None
    assert long.first_token_seconds is not None
    step = 0.01 + (256 + 16) * 1e-5
    # Its share is one page a step, and no step goes by without it.
    assert long.started_seconds - 5.0 <= step
    assert long.first_token_seconds - long.started_seconds <= 4_096 / 16 * step + 1e-6
    # No stream ever misses a step.
    assert max(replayed.record.gaps.values) <= step + 1e-9
    assert replayed.status.chunk_cuts == 4_096 / 16 - 1
