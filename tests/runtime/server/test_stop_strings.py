"""Stop strings: found across cuts, earliest end wins, nothing after them, nothing lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sluice_runtime.server.answer_text import StopStrings


def run(
    stops: list[str], pieces: list[str], *, kept: bool = False, ignored: int = 0
) -> tuple[str, bool]:
    """`ignored`: the first pieces, in which no stop string ends."""
    matcher = StopStrings(stops, kept=kept)
    text = "".join(
        matcher.push(piece, honoured=number >= ignored) for number, piece in enumerate(pieces)
    )
    if not matcher.found:
        text += matcher.finish()
    return text, matcher.found


@pytest.mark.parametrize(
    ("stops", "pieces", "expected"),
    [
        ([], ["abc"], ("abc", False)),
        (["b"], ["abc"], ("a", True)),
        (["bc"], ["ab", "cd"], ("a", True)),
        (["abcd"], ["a", "b", "c"], ("abc", False)),
        (["abc", "b"], ["abc"], ("a", True)),
        (["aab"], ["aaab"], ("a", True)),
        (["ab", "cab"], ["xcab"], ("x", True)),
        (["\n\n"], ["x\n", "\ny"], ("x", True)),
    ],
)
def test_text_ends_before_the_stop_string(
    stops: list[str], pieces: list[str], expected: tuple[str, bool]
) -> None:
    assert run(stops, pieces) == expected


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    matcher = StopStrings(["END"])
    assert matcher.push("the E") == "the "
    assert matcher.push("xit EN") == "Exit "
    assert matcher.push("D and more") == ""
    assert matcher.found
    assert matcher.push("more") == ""


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    text=st.text("abc", max_size=30),
    cuts=st.lists(st.integers(0, 30), max_size=8),
)
def test_the_answer_does_not_depend_on_where_text_is_cut(
    stops: list[str], text: str, cuts: list[int]
) -> None:
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(borders)]
    answer, found = run(stops, pieces)
    assert (answer, found) == run(stops, list(text)) == run(stops, [text])
    assert text.startswith(answer)
    assert found == any(stop in text for stop in stops)


@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
    pieces=st.lists(st.text("abc", max_size=4), max_size=12),
    ignored=st.integers(0, 12),
    kept=st.booleans(),
)
def test_the_answer_is_what_a_search_of_the_whole_text_finds(
    stops: list[str], pieces: list[str], ignored: int, kept: bool
) -> None:
    text, deaf = "".join(pieces), len("".join(pieces[:ignored]))
    ends = [
        (start + len(stop), start)
        for stop in stops
        for start in range(len(text))
        if text.startswith(stop, start) and start + len(stop) > deaf
    ]
    wanted = (text[: min(ends)[0 if kept else 1]], True) if ends else (text, False)
    assert run(stops, pieces, kept=kept, ignored=ignored) == wanted
