"""Tests of one group run in one worker: what they import and make, no other pays for."""

from __future__ import annotations

import gc
import subprocess
import sys
from itertools import chain, groupby
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import SHARES, TESTS, share_of, unit_of


@pytest.mark.xdist_group("told")
def test_the_scheduler_is_told_of_groups(request: pytest.FixtureRequest) -> None:
    several_workers = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@told") == several_workers


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/a/test_b.py::test_c", "tests/a/test_b.py"),
        ("tests/a/test_b.py::TestC::test_d[one::two@three]", "tests/a/test_b.py"),
        ("tests/a/test_b.py::test_c[one]@group", "group"),
    ],
)
def test_a_worker_is_given_a_file_or_a_group(nodeid: str, unit: str) -> None:
    assert unit_of(nodeid) == unit


@pytest.mark.parametrize(
    ("file", "share"),
    [
        ("runtime/server/test_body.py", 0),
        ("runtime/server/test_chat_template.py", 2),
        ("runtime/scheduler/policies/test_ageing.py", 1),
        ("runtime/handover/test_hello.py", 2),
        ("test_groups.py", 3),
    ],
)
def test_the_longest_name_says_who_takes_a_file(file: str, share: int) -> None:
    assert (TESTS / file).exists()
    assert share_of(TESTS / file) == share


def test_shares_name_files_and_folders_that_exist() -> None:
    for name in chain(*SHARES):
        assert (TESTS / name).exists(), name


def test_a_worker_has_the_files_of_its_share(request: pytest.FixtureRequest) -> None:
    share = getattr(request.config, "workerinput", {}).get("share")
    files = {item.path for item in request.session.items}
    assert share is None or {share_of(file) for file in files} == {share}


OUTCOMES = """
import pytest

@pytest.fixture
def broken():
    raise RuntimeError

@pytest.fixture
def broken_in_the_end():
    yield
    raise RuntimeError

def test_passes(): pass
def test_fails(): assert False
def test_fails_before(broken): pass
def test_fails_behind(broken_in_the_end): pass
def test_skips(): pytest.skip("now")
"""


@pytest.mark.process
def test_one_worker_runs_a_file_and_reports_all_but_what_is_in_order(tmp_path: Path) -> None:
    (tmp_path / "test_outcomes.py").write_text(OUTCOMES)
    report = tmp_path / "report.xml"
    options = ["-n", str(len(SHARES)), "--dist", "each", "-p", "tests.conftest"]
    names = [f"--junitxml={report}", f"--rootdir={tmp_path}", str(tmp_path / "test_outcomes.py")]
    subprocess.run([sys.executable, "-m", "pytest", *options, *names], cwd=TESTS.parent)
    cases = [*ElementTree.parse(report).iter("testcase")]
    found = sorted((case.attrib["name"], *(outcome.tag for outcome in case)) for case in cases)
    assert found == [
        ("test_fails", "failure"),
        ("test_fails_before", "error"),
        ("test_fails_behind", "error"),
        ("test_passes",),
        ("test_skips", "skipped"),
    ]


def test_groups_come_first_and_then_files_of_few_tests(request: pytest.FixtureRequest) -> None:
    if not hasattr(request.config, "workerinput"):
        pytest.skip("in one process tests keep their order")
    sizes = {
        name: len(list(tests))
        for name, tests in groupby(unit_of(item.nodeid) for item in request.session.items)
    }
    files = [name for name in sizes if name.endswith(".py")]
    assert list(sizes)[-len(files) :] == files
    assert [sizes[name] for name in files] == sorted(sizes[name] for name in files)


def test_what_was_collected_is_no_business_of_the_garbage_collector() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
