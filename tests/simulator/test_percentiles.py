"""Weighted percentiles against the plain definition."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from sluice_simulator.percentiles import Spread, percentiles, spread

PAIRS = st.lists(
    st.tuples(st.integers(-50, 50).map(float), st.integers(1, 9)), min_size=1, max_size=40
)


@given(PAIRS)
def test_equal_to_nearest_rank_of_all_values_written_out(pairs: list[tuple[float, int]]) -> None:
    written_out = sorted(value for value, count in pairs for _ in range(count))
    found = spread([value for value, _ in pairs], [count for _, count in pairs])
    for share, value in ((0.5, found.p50), (0.9, found.p90), (0.99, found.p99)):
        assert value == written_out[math.ceil(share * len(written_out)) - 1]
    assert percentiles(written_out, (0.5, 0.9, 0.99)) == [found.p50, found.p90, found.p99]
    assert found.worst == written_out[-1]
    assert math.isclose(found.mean, sum(written_out) / len(written_out), abs_tol=1e-9)


def test_nothing_has_a_spread_of_zeros() -> None:
    assert spread([]) == Spread()
