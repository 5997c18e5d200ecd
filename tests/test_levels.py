"""Which files a level imports, how many examples a profile draws."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from tests.examples import PERCENT, examples
from tests.levels import may_have_tests

UNIT = "not process and not full"
MARKED = "@pytest.mark.process\ndef test_a(): ..."
MIXED = "params = [1, pytest.param(2, marks=pytest.mark.full)]"
WHOLE = "pytestmark = [pytest.mark.process, pytest.mark.timeout(9)]\n" + MIXED


@pytest.mark.parametrize(
    ("text", "expression", "imported"),
    [
        ("def test_a(): ...", UNIT, True),
        ("def test_a(): ...", "process", False),
        ("def test_a(): ...", "hypothesis", True),
        (MARKED, UNIT, True),
        (MARKED, "process and not full", True),
        (MARKED, "apiserver", False),
        (MARKED, "process and full", False),
        (MIXED, "full", True),
        (MIXED, "full and process", False),
        (WHOLE, UNIT, False),
        (WHOLE, "process and not full", True),
        (WHOLE, "process and full", True),
        (WHOLE, "not process", False),
        (WHOLE, "(", True),
        (WHOLE, "", True),
    ],
)
def test_a_file_is_imported_if_a_test_of_it_may_be_asked_for(
    tmp_path: Path, text: str, expression: str, imported: bool
) -> None:
    file = tmp_path / "test_a.py"
    file.write_text(text)
    assert may_have_tests(file, expression) == imported


def test_a_profile_scales_what_tests_ask_for() -> None:
    before = settings.get_current_profile_name()
    try:
        for name, percent in PERCENT.items():
            settings.load_profile(name)
            found = examples(200, stateful_step_count=3)
            assert (found.max_examples, found.stateful_step_count) == (2 * percent, 3)
            assert found.derandomize == (name != "full")
            assert examples(1).max_examples >= 1
    finally:
        settings.load_profile(before)
