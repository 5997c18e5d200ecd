"""The levels of tests, and which files have a test that `-m` takes: no other is imported."""

from __future__ import annotations

import re
from functools import cache
from itertools import chain, combinations
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark.expression import Expression, ExpressionMatcher

LEVELS: Final = frozenset({"process", "apiserver", "cluster", "full", "gpu"})
"""Markers; a test that has none of them is a unit test."""
_NAMED: Final = re.compile(rf"\bmark\.({'|'.join(sorted(LEVELS))})\b")
_OF_THE_FILE: Final = re.compile(r"^pytestmark = (.*)", re.MULTILINE)


def levels_of(item: pytest.Item) -> frozenset[str]:
    return LEVELS.intersection(mark.name for mark in item.iter_markers())


def levels_named(file: Path) -> frozenset[str]:
    """All that its tests can have."""
    return frozenset(_NAMED.findall(text_of(file)))


@cache
def text_of(file: Path) -> str:
    return file.read_text()


def may_have_tests(file: Path, expression: str) -> bool:
    """Whether `-m expression` may take a test of a file: unknown names of it may be true."""
    if not expression:
        return True
    everywhere = set(_NAMED.findall(" ".join(_OF_THE_FILE.findall(text_of(file)))))
    some = sorted(levels_named(file) - everywhere)
    subsets = chain.from_iterable(combinations(some, size) for size in range(len(some) + 1))
    try:
        taken = Expression.compile(expression)
        return any(taken.evaluate(_among(everywhere.union(more))) for more in subsets)
    except (LookupError, SyntaxError):
        return True


def _among(levels: set[str]) -> ExpressionMatcher:
    def matches(name: str, /, **_: str | int | bool | None) -> bool:
        if name not in LEVELS:
            raise LookupError(name)
        return name in levels

    return matches
