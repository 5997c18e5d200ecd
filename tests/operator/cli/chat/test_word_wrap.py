"""A streamed answer is broken between words, however it is cut into pieces."""

from __future__ import annotations

import re

import pytest
from sluice_operator.cli.chat.word_wrap import WordWrap, cells_of

COLUMNS = 10


def screen(written: str) -> list[str]:
    """Lines that a terminal of ten columns shows."""
    lines = [""]
    for erased, sign in re.findall(r"\x1b\[(\d+)D\x1b\[K|(.|\n)", written):
        if erased:
            lines[-1] = lines[-1][: -int(erased)]
        elif sign == "\n":
            lines.append("")
        else:
            if sum(map(cells_of, lines[-1])) + cells_of(sign) > COLUMNS:
                lines.append("")
            lines[-1] += sign
    return [line.rstrip() for line in lines]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("many people live here", ["many", "people", "live here"]),
        ("two\nlines of it", ["two", "lines of", "it"]),
        ("ninechars it", ["ninechars", "it"]),
        ("ninechars  it", ["ninechars", " it"]),
        ("a verylongwordindeed is it", ["a", "verylongwo", "rdindeed", "is it"]),
        ("is 東京東京東京", ["is 東京東", "京東京"]),
        ("cafe\u0301 here", ["cafe\u0301 here"]),
        ("live eight", ["live", "eight"]),  # the last cell stays free
    ],
)
def test_words_stay_whole(text: str, lines: list[str], size: int) -> None:
    wrap = WordWrap(COLUMNS)
    pieces = (text[at : at + size] for at in range(0, len(text), size))
    assert screen("".join(map(wrap.chunk, pieces))) == lines
