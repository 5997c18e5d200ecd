"""Each line of the page of others' failures links an issue and tests that there are."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

PAGE: Final = Path(__file__).resolve().parents[2] / "docs/explanation/failures-of-others.md"
ROWS: Final = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| [")
]
LINK: Final = re.compile(r"\[(?P<text>[^]]+)\]\((?P<target>[^)]+)\)")
ISSUE: Final = re.compile(
    r"\[([\w.-]+/[\w.-]+)#(\d+)\]\(https://github\.com/\1/(?:issues|pull)/\2\)"
)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0].partition("]")[0].strip("["))
def test_a_line_links_an_issue_and_tests_by_name(row: list[str]) -> None:
    reported, *_, tests = row
    assert len(row) == 4
    assert ISSUE.sub("", reported).strip(", ") == ""
    links = LINK.findall(tests)
    assert links
    for name, target in links:
        file = (PAGE.parent / target).resolve()
        assert name in _functions(file), f"{name} in {target}"
    assert LINK.sub("", tests).strip(", ") == ""


def test_there_are_lines() -> None:
    assert len(ROWS) >= 25


def _functions(file: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
