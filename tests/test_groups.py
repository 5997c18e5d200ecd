"""Tests of one group run in one worker: what they import and make, no other pays for."""

from __future__ import annotations

import gc

import pytest

from tests.conftest import FilesAndGroups


@pytest.mark.xdist_group("told")
def test_the_scheduler_is_told_of_groups(request: pytest.FixtureRequest) -> None:
    several_workers = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@told") == several_workers


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/a/test_b.py::test_c", "tests/a/test_b.py"),
        ("tests/a/test_b.py::TestC::test_d[one::two@three]", "tests/a/test_b.py"),
        ("tests/a/test_b.py::test_c[one]@group", "group"),
    ],
)
def test_a_worker_is_given_a_file_or_a_group(nodeid: str, scope: str) -> None:
    assert FilesAndGroups._split_scope(object.__new__(FilesAndGroups), nodeid) == scope


def test_what_was_collected_is_no_business_of_the_garbage_collector() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
