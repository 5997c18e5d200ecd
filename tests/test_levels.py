"""What a unit test may cost, which files a level imports, how many examples a profile draws, which
combinations of a matrix a level has."""

from __future__ import annotations

from itertools import combinations, product
from math import prod
from pathlib import Path

import pytest
from hypothesis import settings

from tests import cpu_limit
from tests.cpu_limit import CpuLimit
from tests.examples import PERCENT, examples
from tests.levels import may_have_tests
from tests.pairwise import matrix

pytest_plugins = ["pytester"]

COSTLY = """
import subprocess, sys, time
import pytest

def burn():
    ends = time.process_time() + 0.04
    while time.process_time() < ends:
        pass

@pytest.fixture(scope="module")
def shared():
    burn()

@pytest.fixture
def own():
    burn()

def test_cheap(shared): pass
def test_call(): burn()
def test_fixture(own): pass
def test_child(): subprocess.run([sys.executable, "-S", "-c", "for n in range(2 * 10**6): pass"])
def test_sleeps(): time.sleep(0.06)
@pytest.mark.process
def test_process(): burn()
def test_own_fault(): burn(); assert False
"""


def test_a_unit_test_that_takes_more_cpu_time_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(COSTLY)
    pytester.makeini("[pytest]\nmarkers = process: whole processes")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    with monkeypatch.context() as patch:
        patch.setattr(cpu_limit, "LIMIT_SECONDS", 0.01)
        patch.setattr(cpu_limit, "tolerance", lambda: 2.5)
        ran = pytester.inline_run("-p", "no:cacheprovider", plugins=[CpuLimit()])
    passed, _, failed = ran.listoutcomes()
    assert [name_of(each) for each in passed] == ["test_cheap", "test_sleeps", "test_process"]
    said = {name_of(each): str(each.longrepr) for each in failed}
    assert said.keys() == {"test_call", "test_fixture", "test_child", "test_own_fault"}
    assert "assert False" in said.pop("test_own_fault")
    for text in said.values():
        assert text.endswith(
            " CPU-seconds; a unit test takes at most 0.01: make it cheaper or mark it process"
        )


def name_of(report: pytest.CollectReport | pytest.TestReport) -> str:
    return report.nodeid.partition("::")[2]


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


@pytest.mark.parametrize("together", [1, 2])
@pytest.mark.parametrize("sizes", [(11, 5, 3, 2), (2, 2, 2, 2), (3, 3, 3), (1, 4, 2)])
def test_a_matrix_has_a_cover_in_its_level_and_all_else_in_full(
    sizes: tuple[int, ...], together: int
) -> None:
    axes = [[f"{axis}:{value}" for value in range(size)] for axis, size in enumerate(sizes)]
    sets = matrix(*axes, others=pytest.mark.full, together=together)
    assert [each.values for each in sets] == [*product(*axes)]
    assert all(list(each.marks) in ([], [pytest.mark.full]) for each in sets)
    cover = [each.values for each in sets if not each.marks]
    for some in combinations(range(len(sizes)), together):
        values = {tuple(row[axis] for axis in some) for row in cover}
        assert values == {*product(*(axes[axis] for axis in some))}
    assert len(cover) <= 1.5 * prod(sorted(sizes)[-together:])
