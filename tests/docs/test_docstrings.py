"""A docstring is a sentence about its own name: none leans on the line above it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEANING = r"(?:Of|The same|As above|So (?:is|are)|Those|Its own|By the|From)\b"
"""Beginnings of a docstring that has no subject of its own."""
CANDIDATE = re.compile(rf"""["']\s*{LEANING}""")
"""Any string with such a beginning; only files that have one are parsed, which is slow."""


def test_no_docstring_of_the_product_leans_on_the_line_above() -> None:
    leaning = []
    for file in _sources():
        text = file.read_text()
        if CANDIDATE.search(text):
            leaning += [f"{file.relative_to(ROOT)}:{finding}" for finding in _leaning(text)]
    assert not leaning, "begin with the subject or the unit:\n" + "\n".join(leaning)


def test_docstrings_of_modules_classes_functions_and_attributes_are_checked() -> None:
    source = '''"""Of a module."""
SECONDS = 5.0
"""The same in seconds."""
NAME = "Of no docstring"
class Pool:
    """So are the next two."""
    size: int
    """
    Those that are ready."""
    ready: int
    """Engines that are ready, of those that the pool has."""
    def grow(self) -> None:
        """From one size to another."""
        self.left = 0
        """Its own."""
LIMIT = Field(description="Of all of them.")
'''
    assert CANDIDATE.search(source)
    lines = [int(finding.partition(":")[0]) for finding in _leaning(source)]
    assert lines == [1, 3, 6, 8, 13, 15, 16]


def _sources() -> Iterator[Path]:
    for folder in ("kernels", "operator", "runtime"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def _leaning(source: str) -> list[str]:
    """Line and text of docstrings without a subject, also of those below a constant or a field, and
    of descriptions of fields."""
    docstrings = (
        (node.value.lineno, node.value.value.strip())
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        or (isinstance(node, ast.keyword) and node.arg == "description")
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
    return [f"{line}: {text}" for line, text in sorted(docstrings) if re.match(LEANING, text)]
