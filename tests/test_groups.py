"""Tests of one group run in one worker: what they import and make, no other pays for."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("told")
def test_the_scheduler_is_told_of_groups(request: pytest.FixtureRequest) -> None:
    several_workers = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@told") == several_workers
