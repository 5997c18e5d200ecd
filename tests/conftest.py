"""How these tests are dealt out to workers, and what the garbage collector need not look at."""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling


class FilesAndGroups(LoadGroupScheduling):
    """A worker is given a whole file, or all tests of a group.

    One by one, tests of a file would go to workers in turn: each would make the fixtures of the
    module, and wait for its next test more often than not.
    """

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if scope == nodeid else scope


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    return FilesAndGroups(config, log) if config.option.dist == "loadgroup" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and tests live as long as the run: a collection that visits them frees nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
